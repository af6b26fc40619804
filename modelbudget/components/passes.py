"""FLOPs of other passes, from those of forward: for parts without a core of attention."""

from collections.abc import Callable

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import one_token
from modelbudget.components.contract import Values, doubled

Flops = Callable[[Fields, Run], Values]


def backward_of(flops: Flops) -> Flops:
    """Return the FLOPs of the gradients."""

    def flops_backward(a: Fields, r: Run) -> Values:
        """Each product twice, for the gradients of both its factors."""
        return doubled(flops(a, r))

    return flops_backward


def recomputed_of(flops: Flops) -> Flops:
    """Return the FLOPs that checkpointing repeats."""

    def flops_recomputed(a: Fields, r: Run) -> Values:
        """All of the forward pass with full checkpointing, else nothing."""
        return flops(a, r) if r.recompute == "full" else {}

    return flops_recomputed


def decode_of(flops: Flops) -> Flops:
    """Return the FLOPs of decoding."""

    def flops_decode(a: Fields, r: Run) -> Values:
        """Count the FLOPs of one decoded token, which reads a state of constant size."""
        return flops(a, one_token(r))

    return flops_decode
