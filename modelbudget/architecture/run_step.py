"""The step that a run takes: batch, precision, optimizer, kernels, checkpointing."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from modelbudget.architecture import optimizers
from modelbudget.architecture.constraint import Check, Constraint
from modelbudget.architecture.record import Count, Record, Size
from modelbudget.architecture.run_rules import rules
from modelbudget.architecture.stored_formats import FORMATS

HALF = ("bfloat16", "float16")
FULL = ("float32", "float64")
WEIGHTS = ("dtype", *FORMATS, "unknown")
"""Formats of weights (`configs/weight_formats/`)."""
WITH_BLOCKS = {word: known.format for word, known in FORMATS.items() if known.format.block}
WITH_GROUPS = [word for word, known in FORMATS.items() if known.format.groups]
WHOLE: dict[str, tuple] = {
    "zero": (0, 1),
    "tensor_parallel": (1,),
    "expert_parallel": (1,),
    "pipeline_schedule": ("none",),
}
"""Settings with which an optimizer steps whole parameter tensors, or one row of all of them."""


def _fused_is_known(values: Mapping[str, Any]) -> str | None:
    """Name an optimizer whose fused kernel is not known: read from its file, when it is used."""
    name = values["optimizer"]
    if not values["fused"] or optimizers.optimizer_named(name).has_kernel("fused"):
        return None
    return (
        f"fused = true: optimizer = {name}: no fused kernel of it was traced; allowed: "
        "optimizer: adamw, or fused: false"
    )


def _step_in_backward_is_known(values: Mapping[str, Any]) -> str | None:
    """Refuse a step inside of the backward pass whose temporary tensors are not known."""
    name = values["optimizer"]
    kernel = "fused" if values["fused"] else "foreach" if values["foreach"] else "single"
    of_one = optimizers.optimizer_named(name)
    if not values["optimizer_in_backward"] or of_one.has_kernel(kernel):
        return None
    return (
        f"optimizer_in_backward = true: optimizer = {name}: the temporary tensors of its step were "
        "not traced; allowed: an optimizer of torch"
    )


def _sizes_are_whole(values: Mapping[str, Any]) -> str | None:
    """Refuse states that depend on the sizes of a tensor where devices divide tensors."""
    name = values["optimizer"]
    if optimizers.optimizer_named(name).follows_numbers:
        return None
    for field, whole in WHOLE.items():
        if values[field] not in whole:
            return (
                f"optimizer = {name}: its states depend on the sizes of each tensor, of which "
                f"devices have parts with {field} = {values[field]}: nobody has compared that; "
                f"allowed: {field}: {' or '.join(map(str, whole))}"
            )
    return None


def _parts_are_stepped(values: Mapping[str, Any]) -> str | None:
    """Refuse an optimizer that torch cannot step where parameters are parts of tensors (DTensor).

    A buffer of accumulated gradients is stepped with what each device has.
    """
    name = values["optimizer"]
    why = optimizers.optimizer_named(name).not_of_parts
    is_whole = {
        "zero": values["zero"] not in (2, 3),
        "tensor_parallel": values["tensor_parallel"] == 1
        or values["gradient_casts"] == "accumulated",
    }
    if not why or all(is_whole.values()):
        return None
    field = next(field for field in is_whole if not is_whole[field])
    return (
        f"optimizer = {name}: torch cannot step parts of tensors, which devices have with {field} "
        f"= {values[field]}: {why}; allowed: {field}: {' or '.join(map(str, WHOLE[field]))}"
    )


class Step(Record):
    """One step of training, or one use, whoever computes it."""

    batch: Count = Field(1, description="sequences in one step, on each data-parallel device")
    length: Count = Field(1024, description="tokens in each sequence")
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = Field(
        "float32", description="of parameters, gradients and activations"
    )
    weights: Literal[WEIGHTS] = Field(  # pyright: ignore[reportInvalidTypeForm]
        "dtype",
        description="format of the weight matrices of the layers, which are frozen: for inference, "
        "or under an adapter (configs/weight_formats); embedding, head, norms, routers and biases "
        "have the dtype; unknown: quantised, in a format without formula",
    )
    weight_group: Size = Field(
        128,
        description=f"weights: {', '.join(WITH_GROUPS)}: input channels that share a scale; 0: all",
    )
    weight_block: Size = Field(
        0,
        description=f"weights: {', '.join(WITH_BLOCKS)}: numbers in a row that share a scale, of "
        "FP8 output channels; 0: the default of the format",
    )
    weights_of: Literal["library", "layers", "dense", "experts", "all"] = Field(
        "library",
        description="which matrices have the format of weights: those that its library converts, "
        "which may leave stacked experts in the dtype; all of the layers; all but routed experts; "
        "routed experts alone; or all of the layers, and the head if it is not tied",
    )
    expert_weights: Literal["weights", *FORMATS] = Field(  # pyright: ignore[reportInvalidTypeForm]
        "weights",
        description="weights: a second format, of the matrices of routed experts; weights: the "
        "first is theirs too, where weights_of says so",
    )
    expert_weight_group: Size = Field(
        0, description="expert_weights: weight_group of that format; 0: that of weights"
    )
    expert_weight_block: Size = Field(
        0, description="expert_weights: weight_block of that format; 0: that of weights"
    )
    vocabulary_dtype: Literal["dtype", "float32", "bfloat16", "float16", "int8"] = Field(
        "dtype",
        description="dtype in which the matrices of token embedding and head are stored, where it "
        "is not that of the other parameters: rows are cast to the dtype, and the head computes in "
        "its own; int8: of the embedding, with a scale and an int8 zero point for each row, all of "
        "which is dequantised before rows are taken (torchao)",
    )
    autocast: Literal["none", "bfloat16"] = Field(
        "none",
        description="matrix products and attention compute in this dtype, from casts of float32 "
        "weights and states (torch.autocast); all else in the dtype of its arguments or float32",
    )
    master_weights: bool = Field(
        False,
        description="the optimizer keeps a float32 copy of half-precision parameters and works "
        "on that (Micikevicius et al. 2018, §3.1); with zero: 2 and 3 the shards themselves are in "
        "float32, and gathered in dtype (MixedPrecisionPolicy of FSDP2)",
    )
    gradient_casts: Literal["together", "one_by_one", "accumulated"] = Field(
        "together",
        description="master_weights: gradients are cast to float32 before those in the dtype are "
        "dropped; or each is dropped when it is cast; or the backward pass adds each to a float32 "
        "buffer of all gradients, which is kept from step to step, and drops it at once "
        "(Megatron-Core's main_grad)",
    )
    optimizer: Literal[optimizers.NAMES] = Field(  # pyright: ignore[reportInvalidTypeForm]
        "adamw",
        description="what it keeps for each parameter, and needs in a step: a file of "
        "configs/optimizers, listed in docs/optimizers.md",
    )
    optimizer_rank: Count = Field(
        128, description="optimizer: galore, apollo: rank of the gradients of hidden matrices"
    )
    foreach: bool = Field(
        False, description="the optimizer treats all tensors at once: faster, with larger peaks"
    )
    fused: bool = Field(
        False,
        description="Adam or AdamW is one operation over all tensors, without temporary ones "
        "(torch's fused=True; as Apex's and Transformer Engine's)",
    )
    optimizer_in_backward: bool = Field(
        False,
        description="each parameter is updated when its gradient is there, and the gradient freed "
        "(hooks of torch, as torchtune's optimizer_in_bwd)",
    )
    backend: Literal["gpu", "cpu"] = Field(
        "gpu",
        description="whose operations run: a GPU's fused norms and dropout (traced without "
        "storage, or on CUDA), or those of a CPU (traced, or really allocated)",
    )
    attention_kernel: Literal["math", "flash", "efficient", "written_out"] = Field(
        "math",
        description="scores in memory, in torch's composition (math), or never (FlashAttention: "
        "Dao et al. 2022; memory-efficient attention: Rabe & Staats 2021, which a GPU has in "
        "float32 too); written_out: scores in the dtype, one operation at a time, with masks of "
        "each sequence that the model makes once, and the softmax in at least float32",
    )
    dropout: bool = Field(
        False,
        description="dropout of the embedding, of what each attention and MLP adds, and of "
        "attention's probabilities (Vaswani et al. 2017, §5.4)",
    )
    dropout_in: Literal["model", "layers", "attention"] = Field(
        "model",
        description="where dropout is: in all three places; in the two of the layers; or only of "
        "attention's probabilities",
    )
    recompute: Literal["none", "selective", "full"] = Field(
        "none",
        description="activations that are computed again in the backward pass instead of kept: "
        "those of attention's core, or all of a layer but its input (Korthikanti et al. 2022, §5)",
    )

    derived: ClassVar[dict[str, str]] = {"length": "max(1, min(n_ctx, 1024))"}

    constraints: ClassVar[tuple[Check, ...]] = (
        *rules("step"),
        *(
            Constraint(
                f"{of}weights in {tuple(words)}",
                f"{of}weight_{size} = {{{of}weight_{size}:,}}: {of}weights: {{{of}weights}} has no "
                f"{size}s; allowed: 0",
                when=f"{of}weight_{size} > 0",
            )
            for of, size, words in (
                ("expert_", "block", WITH_BLOCKS),
                ("expert_", "group", WITH_GROUPS),
                ("", "block", WITH_BLOCKS),
            )
        ),
        Constraint(
            f"weights in {tuple(word for word in FORMATS if word.startswith('torchao'))}",
            "vocabulary_dtype = 'int8': weights: {weights}; allowed: a format of torchao",
            when="vocabulary_dtype == 'int8'",
        ),
        *(
            Constraint(
                f"{of}weight_block in {tuple(stored.blocks)}",
                f"{of}weight_block = {{{of}weight_block:,}}: {word} has blocks of "
                f"{', '.join(map(str, stored.blocks))}; 0: {zero or stored.block}",
                when=f"{of}weight_block > 0 and {of}weights == '{word}'",
            )
            for of, zero in (("", ""), ("expert_", "weight_block"))
            for word, stored in WITH_BLOCKS.items()
            if stored.blocks
        ),
        _fused_is_known,
        _sizes_are_whole,
        _parts_are_stepped,
        _step_in_backward_is_known,
    )
