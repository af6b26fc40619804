"""Activation checkpointing (Chen et al. 2016; Korthikanti et al. 2022, §5)."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import drops_outputs


def repeats_last_product(a: Fields, r: Run):
    """1 where full checkpointing repeats the last product of a layer, else 0.

    Torch stops the repeated forward pass once it has all saved tensors. The last product's result
    is saved only where dropout or a norm follows.
    """
    return 1 - int(a.norm_placement == "pre") * (1 - drops_outputs(r))
