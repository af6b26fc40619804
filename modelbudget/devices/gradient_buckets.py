"""Buckets in which data-parallel devices add gradients up (torch's DistributedDataParallel).

Source: torch/csrc/distributed/c10d/reducer.cpp, `mark_variable_ready_dense`: each gradient is
copied into its bucket when autograd has accumulated it; with gradient_as_bucket_view the gradient
is a view of the bucket from then on.
"""

from collections.abc import Callable

from modelbudget.architecture.run_config import RunConfig
from modelbudget.operations.autograd import in_layers
from modelbudget.operations.tape import Tensor, empty

Keep = Callable[[Tensor], None]
"""What is called with a parameter when its gradient is there."""


def make(run: RunConfig, trained: list[Tensor]) -> Keep | None:
    """Allocate buckets, which are kept from step to step; None if a run has none."""
    if run.gradient_buckets == "none":
        return None
    buckets = {p: empty(p.shape, p.dtype, p.strides) for p in in_layers(trained)}

    def keep(p: Tensor) -> None:
        if run.gradient_buckets == "views":
            p.grad = buckets[p]

    return keep
