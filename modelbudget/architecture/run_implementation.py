"""How an implementation computes: fused or written out, held or freed, in which dtype."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.constraint import Check
from modelbudget.architecture.record import Count, Record
from modelbudget.architecture.run_rules import rules
from modelbudget.common.files import yaml_files
from modelbudget.common.paths import CONFIGS

IMPLEMENTATIONS = {path.stem: path for path in yaml_files(CONFIGS / "implementations")}
"""Files of implementations, by name (`modelbudget/catalogue/implementations.py`)."""

Implementation: Any = Literal[*IMPLEMENTATIONS]


class HowComputed(Record):
    """Settings that an `implementation` sets; each can be set alone."""

    softmax_dtype: Literal["float32", "dtype"] = Field(
        "float32",
        description="attention_kernel: written_out: the softmax is in at least float32, or in the "
        "dtype; with autocast in float32 in any case",
    )
    mask_argument: Literal["held", "saved"] = Field(
        "held",
        description="attention_kernel: written_out: layers get the model's mask by keyword, which "
        "full checkpointing only holds, or by position, which it saves as an argument",
    )
    score_cap: Literal["none", "tanh"] = Field(
        "none", description="attention_kernel: written_out: tanh caps the scores (Gemma 2, §2)"
    )
    logit_cap: Literal["none", "tanh"] = Field(
        "none", description="tanh caps the logits (Gemma 2, §2)"
    )
    implementation: Implementation = Field(  # pyright: ignore[reportInvalidTypeForm]
        "modelbudget",
        description="whose code computes: sets the fields below that are not set themselves "
        "(configs/implementations/)",
    )
    norm_kernel: Literal["fused", "written_out", "written_out_exact", "written_out_wide"] = Field(
        "fused",
        description="RMSNorm in one operation, or as separate operations in at least float32: all "
        "but the scale, which multiplies in the dtype, or all, with 1 + the scale (exact: Gemma) "
        "or with the scale itself, which stays in its dtype (wide: OLMo 2); "
        "LayerNorm is one operation everywhere",
    )
    activation_kernel: Literal["fused", "written_out", "written_out_factored", "fused_gate"] = (
        Field(
            "fused",
            description="GELU in one operation, or its tanh approximation as separate operations "
            "(OpenAI's code for GPT-2), which may have x as a factor of tanh's argument (factored: "
            "gelu_fast of transformers); SiLU and ReLU are one operation everywhere; fused_gate: "
            "one with the product of a gated MLP, which saves only its input and computes the rest "
            "again (Megatron-Core's fused SwiGLU)",
        )
    )
    projections: Literal["separate", "packed", "copied", "sliced"] = Field(
        "separate",
        description="query, key and value are three matrix products, or one with a matrix of three "
        "parts, whose result is split (packed), or split and copied, so that each is contiguous "
        "(copied), or sliced three times, each slice with a gradient of the whole result",
    )
    gate_and_up: Literal["separate", "packed"] = Field(
        "separate",
        description="gate and up of a gated MLP are two matrix products, or one with a matrix of "
        "both, whose result is split; experts have a setting of their own",
    )
    expert_kernel: Literal["scattered", "gathered"] = Field(
        "scattered",
        description="weighted outputs of experts are added to the sums of their tokens; or they "
        "are gathered in the order of the tokens and summed, in at least float32, with weights "
        "that the router computes in that and divides by their sum; gate and up are one product",
    )
    rope_tables: Literal["layer", "model", "complex"] = Field(
        "layer",
        description="cosines and sines of RoPE: made by each layer, for queries and for keys, half "
        "as wide as the rotated channels; or once for the model, as wide as these, which are "
        "multiplied whole and with their halves exchanged; or a buffer of complex numbers in each "
        "layer, of which it takes the rows of its tokens, and heads are multiplied as complex "
        "numbers in at least float32",
    )
    rope_layout: Literal["token", "head"] = Field(
        "token",
        description="rope_tables: model: rotated queries and keys are contiguous per token, as the "
        "projections are; or per head, as a concatenation with the channels that are not rotated, "
        "even if there are none",
    )
    rope_dtype: Literal["dtype", "float32"] = Field(
        "dtype",
        description="rope_tables: model: cosines and sines are in the dtype of the states; or in "
        "float32, and rotated queries and keys are cast back (OLMo 2)",
    )
    embedding_scale: Literal["none", "buffer"] = Field(
        "none",
        description="the token embedding is multiplied by √d_model, which is a buffer of the model "
        "(Vaswani et al. 2017, §3.4)",
    )
    embeddings: Literal["freed", "held"] = Field(
        "freed",
        description="token and position embeddings are freed once they are summed, or are local "
        "variables of the model to the end of its layers' forward pass in training",
    )
    loss_dtype: Literal["logits", "float32"] = Field(
        "logits",
        description="the loss is computed in the dtype of the logits, or over a copy of all logits "
        "in at least float32",
    )
    loss_kernel: Literal["torch", "in_place", "fused_linear"] = Field(
        "torch",
        description="torch's cross-entropy; or one that turns the numbers it reads into the "
        "softmax, and that into their gradient, in place, and saves them with a mask and the "
        "targets (Megatron-Core): a copy with loss_dtype: float32, otherwise the logits; "
        "or head and loss in one, with all gradients in the forward pass, in chunks of a power of "
        "two of tokens that share one buffer of logits (Liger-Kernel)",
    )
    gradient_accumulation_fusion: bool = Field(
        False,
        description="gradient_casts: accumulated: products of attention, MLPs and head add the "
        "gradients of their weights to the float32 buffer themselves, and autograd gets a tensor "
        "without values, one for each shape, which stays from step to step (Megatron-Core's flag; "
        "Transformer Engine's get_dummy_wgrad)",
    )
    gathered_states: Literal["saved", "again"] = Field(
        "saved",
        description="sequence_parallel: the states that a device gathers for attention, MLP and "
        "head are saved; or its own part of them is, and they are gathered again in the backward "
        "pass, for the head into a buffer that stays (Korthikanti et al. 2022, §4.2.2)",
    )
    embedding_gradient: Literal["whole", "own_rows"] = Field(
        "whole",
        description="tensor_parallel: each device computes the gradient of all rows of the token "
        "embedding, as torch's DTensor does; or of its own rows, from tokens with those of other "
        "devices masked (VocabParallelEmbedding of Megatron-Core)",
    )
    state_dtype: Literal["dtype", "float32"] = Field(
        "dtype",
        description="inference keeps the state of a state space model in the dtype, or in at least "
        "float32",
    )
    targets: Literal["given", "shifted"] = Field(
        "given",
        description="targets are given; or each forward pass makes them, a copy of the labels "
        "shifted by one token, sums their losses and divides by their number",
    )
    outputs: Literal["freed", "kept"] = Field(
        "freed",
        description="logits are freed before the backward pass, or held by the caller through it",
    )
    loss_chunks: Count = Field(
        1,
        description="head and loss are computed for one chunk of the tokens after another, each "
        "with its gradients at once, so that the logits of one chunk exist at a time; 1: for all "
        "tokens, with gradients in the backward pass",
    )

    constraints: ClassVar[tuple[Check, ...]] = (*rules("implementation"),)
