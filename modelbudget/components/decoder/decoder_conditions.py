"""Conditions of a decoder's closed formulas; where none holds, its program answers."""

from modelbudget.architecture.arithmetic import ceil_div, positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_groups import layer_groups
from modelbudget.architecture.optimizers import optimizer_named
from modelbudget.architecture.run_values import (
    has_part_of_states,
    is_interleaved,
    is_pipelined,
    is_sharded,
    stays_gathered,
)
from modelbudget.components import layer, multi_token_prediction, norm
from modelbudget.components.decoder.decoder_terms import all_tensors
from modelbudget.components.layer import BEFORE
from modelbudget.components.parallel import expert_parallel
from modelbudget.memory import optimizer_states
from modelbudget.memory.parameter_tensors import have_shapes

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
    is_of_class = norm.is_written_out(a, r) or r.embeddings == "held" or r.rope_tables == "model"
    has_layers = layers_are_as_in_llama(a) if is_of_class else 1
    has_one_loss = (1 - positive(r.loss_chunks - 1)) * multi_token_prediction.has_none(a)
    has_one_pass = 1 if is_pipelined(r) else 1 - positive(r.n_microbatch - 1)
    return has_layers * has_one_loss * has_one_pass * (1 - r.dropout)


def layers_are_as_in_llama(a: Fields):
    """1 where settings of Llama's class have closed forms in the layers of a model, else 0.

    Norms are before their parts alone, of which one follows the other; of embeddings there are
    those of tokens alone.
    """
    has_others = a.norm_placement != "pre" or a.position in ("learned", "sinusoidal")
    has_others = has_others or "none" in a.mixers.split()
    return (1 - int(has_others)) * (1 - a.parallel) * (1 - a.embedding_norm)


def has_closed_products(quantity: str, a: Fields, r: Run):
    """1 where FLOPs may have a closed formula, else 0: checkpointed, of whole layers alone."""
    again = r.recompute if quantity == "flops_backward" else "none"
    if r.loss_kernel == "fused_linear" or again in ("selective", "selective_op"):
        return 0
    drops_outputs = r.dropout * int(r.dropout_in != "attention")
    return multi_token_prediction.has_none(a) * (1 - drops_outputs * int(again == "full"))


def knows_optimizer(quantity: str, a: Fields, r: Run):
    """1 where the optimizer of a run has what a quantity reads of it, else 0.

    The sizes of tensors that its states depend on; the temporary tensors of its step; gradients,
    which a step inside of the backward pass frees.
    """
    optimizer, is_peak = optimizer_named(r.optimizer), quantity == "peak_training_bytes"
    if is_peak and not optimizer_states.is_known(r):
        return 0
    if is_peak or quantity == "optimizer_bytes":
        has_sizes = not has_part_of_states(r) and have_shapes(all_tensors(a))
        if not (optimizer.follows_numbers or has_sizes):
            return 0
    if not is_peak and quantity != "gradient_bytes":
        return 1
    return (1 - r.optimizer_in_backward) * int(optimizer.updates_in == "step")


def knows_shards(quantity: str, a: Fields, r: Run):
    """1 where a quantity of a device's shards has a formula, else 0.

    The rows of each tensor are known; the peak, where all layers are of one group and there are at
    least two, in each stage, and no devices divide the experts.
    """
    if quantity not in SHARDED:
        return 1
    known = have_shapes(all_tensors(a))
    if quantity == "peak_training_bytes":
        n_layer = ceil_div(a.n_layer, r.pipeline_parallel)
        known = int(known and len(layer_groups(a)) == 1) * positive(n_layer - 1)
        return known * (1 - expert_parallel.exchanges(r))
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
