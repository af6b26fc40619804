"""Memory over time: timelines of training and inference, optimizer states, the allocator."""
