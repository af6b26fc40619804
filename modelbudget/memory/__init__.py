"""Memory over time: allocations of training and inference, optimizer states, the allocator."""
