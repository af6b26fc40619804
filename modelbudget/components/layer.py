"""A layer: a mixer and a feed-forward part with their norms, in sequence or in parallel.

Everything in `layers/` iterates over the parts that a model's patterns name (`contract.py`).
"""

from modelbudget.components.layers.by_component import in_layers, parameters
from modelbudget.components.layers.layer_backward import training
from modelbudget.components.layers.layer_fields import LayerFields
from modelbudget.components.layers.layer_parts import (
    all_parts,
    component_name,
    fields_of_parts,
    has_formula,
    n_layers,
    parts,
)
from modelbudget.components.layers.layer_saved import (
    first_input_held,
    held,
    held_in_forward,
    read_by_all,
    saved,
)
from modelbudget.components.layers.layer_tensors import joins, matrices, packed, tensors
