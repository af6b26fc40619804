"""The forward pass of an embedding, where each of several devices has a part of the vocabulary.

Torch 2.13, `DTensor`: `_embedding_ops.py` (`_MaskPartial`) and `_functional_collectives.py`.
"""

from modelbudget.architecture.formula_arguments import Run
from modelbudget.architecture.run_values import INDEX, bytes_of, divides
from modelbudget.components.loss import MASK
from modelbudget.memory.timeline import Allocation, Timeline, all_reduce, times

OTHERS = "tokens of other devices"


def rows(r: Run, states) -> Timeline:
    """Return how a device embeds all tokens in `states` bytes, and sums them over devices.

    Tokens whose rows other devices have are masked; their states are zeros.
    """
    index, mask = (r.batch * r.length * size for size in (INDEX, MASK))
    embedded = Allocation("rows of the token embedding", states)
    divided = [
        Allocation(OTHERS, 3 * mask, 2 * mask),
        Allocation("places in its rows", 2 * index, index),
        Allocation("0 instead of places in others", INDEX, INDEX),
        embedded,
        Allocation("places, freed", 0, index),
        Allocation("0 instead of rows of others", bytes_of(r.dtype), bytes_of(r.dtype)),
        Allocation(f"{OTHERS}, freed", 0, mask),
        *all_reduce(r, states),
    ]
    return [*times(1 - divides(r), [embedded]), *times(divides(r), divided)]
