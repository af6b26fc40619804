"""Conditions of a decoder's closed formulas; where none holds, its program answers."""

from modelbudget.architecture.arithmetic import ceil_div, positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_groups import layer_groups
from modelbudget.architecture.run_values import (
    drops_outputs,
    is_interleaved,
    is_sharded,
    stays_gathered,
)
from modelbudget.components import layer, multi_token_prediction
from modelbudget.components.decoder.decoder_terms import all_tensors
from modelbudget.components.layer import BEFORE
from modelbudget.devices import shards

OF_TENSORS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
SHARDED = (*OF_TENSORS, "peak_training_bytes")
"""Quantities of which a device holds only its shard, and what it gathers."""


OF_ONE_DEVICE = (
    "parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "flops_forward",
    "flops_backward", "peak_training_bytes",
)  # fmt: skip
"""Quantities of one stage of a pipeline, or of one of several devices that compute one model."""

OF_STEP = ("activation_bytes", "peak_training_bytes")
OF_SETTINGS = {
    "activation_kernel": ("fused",),
    "attention_kernel": ("math", "flash", "efficient"),
    "backend": ("gpu",),
    "embedding_scale": ("none",),
    "gradient_buckets": ("none",),
    "logit_cap": ("none",),
    "loss_kernel": ("torch",),
    "norm_kernel": ("fused", "written_out"),
    "recompute": ("none", "selective", "full"),
    "rope_dtype": ("dtype",),
    "rope_layout": ("token",),
    "rope_tables": ("layer", "model"),
}
"""Run settings with which these are closed: those of the page's calculator and of Llama's class."""


def has_closed_step(a: Fields, r: Run):
    """1 where the bytes of a step may have a closed formula, else 0."""
    if any(getattr(r, name) not in closed for name, closed in OF_SETTINGS.items()):
        return 0
    has_one_loss = (1 - positive(r.loss_chunks - 1)) * multi_token_prediction.has_none(a)
    return has_one_loss * (1 - r.dropout)


def has_closed_products(quantity: str, a: Fields, r: Run):
    """1 where FLOPs may have a closed formula, else 0: checkpointed, of whole layers alone."""
    again = r.recompute if quantity == "flops_backward" else "none"
    if r.loss_kernel == "fused_linear" or again in ("selective", "selective_op"):
        return 0
    return multi_token_prediction.has_none(a) * (1 - drops_outputs(r) * int(again == "full"))


def knows_shards(quantity: str, a: Fields, r: Run):
    """1 where a quantity of a device's shards has a formula, else 0.

    The rows of each tensor are known; the peak, where all layers are of one group and there are at
    least two, in each stage.
    """
    if quantity not in SHARDED:
        return 1
    known = shards.are_known(all_tensors(a))
    if quantity == "peak_training_bytes":
        n_layer = ceil_div(a.n_layer, r.pipeline_parallel)
        return int(known and len(layer_groups(a)) == 1) * positive(n_layer - 1)
    return int(known) * layer.has_formula("parameter_bytes", a, r)


def is_of_stages(quantity: str, a: Fields, r: Run) -> bool:
    """Whether a quantity of one stage has a formula: all layers are of one group.

    What interleaved stages save depends on the order in which they take turns. The peak, where a
    norm and no matrix product is the last that reads a layer's input: the buffer in which the first
    layer finds it is not freed with it; logits are freed. Of shards, where parameters are gathered
    once and gradients reduced in their dtype.
    """
    is_peak = quantity == "peak_training_bytes"
    has_shards = bool(stays_gathered(r)) and r.reduce_dtype == "dtype" if is_sharded(r) else True
    known = not is_peak or (a.norm_placement in BEFORE and has_shards and r.outputs == "freed")
    known = known and not (is_interleaved(r) and (is_peak or quantity == "activation_bytes"))
    return quantity in OF_ONE_DEVICE and known and len(layer_groups(a)) == 1
