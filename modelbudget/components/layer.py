"""A layer: a mixer and a feed-forward part with their norms, in sequence or in parallel.

Everything in `layers/` iterates over the parts that a model's patterns name (`contract.py`).
"""

from modelbudget.components.layers.layer_step import (
    first_input_held,
    held,
    held_in_forward,
    read_by_all,
    saved,
    training,
)
from modelbudget.components.layers.layer_values import (
    LayerFields,
    all_parts,
    component_name,
    fields_of_parts,
    has_formula,
    in_layers,
    joins,
    matrices,
    n_layers,
    packed,
    parameters,
    parts,
    tensors,
)
