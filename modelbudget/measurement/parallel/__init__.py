"""Models whose tensors are distributed over devices, measured by torch's own parallel code."""
