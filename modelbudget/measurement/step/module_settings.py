"""Modules as the run has them, in training and in inference."""

from torch import nn

from modelbudget.architecture.adapter_methods import reaches_experts
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.stored_formats import converts_class
from modelbudget.measurement.step.class_adapters import adapt_class
from modelbudget.measurement.step.class_weights import quantise_class
from modelbudget.measurement.step.operations_of_step import is_transformers_class
from modelbudget.modules.adapters import adapt
from modelbudget.modules.cache import KeepsStates
from modelbudget.modules.decoder import DecoderModel
from modelbudget.modules.embedding import Embedding, RotaryPositions
from modelbudget.modules.encoder_decoder import StackLayer
from modelbudget.modules.feed_forward.mlp import MLP
from modelbudget.modules.feed_forward.moe import MoE
from modelbudget.modules.layer import Layer
from modelbudget.modules.mixers.attention import Attention
from modelbudget.modules.scaled_dot_product import ScaledDotProductAttention
from modelbudget.modules.weight_formats import quantise, store_vocabulary


def arrange(model: nn.Module, run: RunConfig) -> None:
    """Let layers share tables of RoPE, projections a matrix; set how experts and states compute.

    What is one matrix once stays one.
    """
    _arrange(model, run)
    if is_transformers_class(model):
        if converts_class(run.weights):
            quantise_class(model, run)
        if run.adapter != "none":
            adapt_class(model, run)
    else:
        if run.weights not in ("dtype", "unknown"):
            quantise(model, run)
        if isinstance(model, DecoderModel) and isinstance(model.embedding, Embedding):
            store_vocabulary(model, run)
        adapt(model, run)


def _arrange(model: nn.Module, run: RunConfig) -> None:
    modules = list(model.modules())
    device = next(model.parameters()).device
    attends = any(isinstance(module, Attention) for module in modules)
    for module in modules:
        if isinstance(module, DecoderModel):
            module.holds_embeddings = run.embeddings == "held"
            module.makes_masks = run.attention_kernel == "written_out"
            module.head.capped = run.logit_cap == "tanh"
        elif isinstance(module, RotaryPositions):
            module.share_rotation(attends and run.rope_tables == "model", device)
            module.exact_tables = run.rope_dtype == "float32"
            module.gives_places = attends and run.rope_tables == "complex" and module.d_rotary > 0
            if isinstance(module, Embedding):
                module.scale_rows(run.embedding_scale == "buffer")
        elif isinstance(module, Attention):
            module.rope_by_head = run.rope_layout == "head"
            module.casts_rope_back = run.rope_dtype == "float32"
            module.tabulate(run.length if run.rope_tables == "complex" else 0)
            module.pack(run.projections)
        elif isinstance(module, StackLayer):
            module.attention.n_kept = run.target_length
        elif isinstance(module, ScaledDotProductAttention):
            module.kernel = run.attention_kernel
        elif isinstance(module, MoE):
            module.gather(run.expert_kernel == "gathered", reaches_experts(run))
        elif isinstance(module, Layer):
            module.saves_mask = run.mask_argument == "saved"
        elif isinstance(module, MLP):
            module.pack(run.gate_and_up == "packed")
            module.fuses_gate = run.activation_kernel == "fused_gate"
        elif isinstance(module, KeepsStates) and module.follows_run:
            module.exact_state = run.state_dtype == "float32"
