"""Memory over time: timelines of training, optimizer states, the allocator."""
