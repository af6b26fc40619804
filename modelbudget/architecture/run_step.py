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

    batch: Count = 1
    length: Count = 1024
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "float32"
    weights: Literal[WEIGHTS] = "dtype"  # pyright: ignore[reportInvalidTypeForm]
    weight_group: Size = Field(
        128,
        description=f"weights: {', '.join(WITH_GROUPS)}: input channels that share a scale; 0: all",
    )
    weight_block: Size = Field(
        0,
        description=f"weights: {', '.join(WITH_BLOCKS)}: numbers in a row that share a scale, of "
        "FP8 output channels; 0: the default of the format",
    )
    weights_of: Literal["library", "layers", "dense", "experts", "all"] = "library"
    expert_weights: Literal["weights", *FORMATS] = "weights"  # pyright: ignore[reportInvalidTypeForm]
    expert_weight_group: Size = 0
    expert_weight_block: Size = 0
    vocabulary_dtype: Literal["dtype", "float32", "bfloat16", "float16", "int8"] = "dtype"
    autocast: Literal["none", "bfloat16"] = "none"
    master_weights: bool = False
    gradient_casts: Literal["together", "one_by_one", "accumulated"] = "together"
    optimizer: Literal[optimizers.NAMES] = "adamw"  # pyright: ignore[reportInvalidTypeForm]
    optimizer_rank: Count = 128
    foreach: bool = False
    fused: bool = False
    optimizer_in_backward: bool = False
    backend: Literal["gpu", "cpu"] = "gpu"
    attention_kernel: Literal["math", "flash", "efficient", "written_out"] = "math"
    dropout: bool = False
    dropout_in: Literal["model", "layers", "attention"] = "model"
    recompute: Literal["none", "selective", "full"] = "none"

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
