"""Which settings of a run an optimizer needs, as its data file says (`configs/optimizers/`)."""

from collections.abc import Mapping
from typing import Any

from modelbudget.architecture import optimizers

WHOLE: dict[str, tuple] = {
    "zero": (0, 1),
    "tensor_parallel": (1,),
    "expert_parallel": (1,),
    "pipeline_schedule": ("none",),
}
"""Settings with which an optimizer steps whole parameter tensors, or one row of all of them."""


def kernel_is_known(values: Mapping[str, Any]) -> str | None:
    """Refuse a fused step, or one inside of the backward pass, of unknown temporary tensors.

    The optimizer's file says which kernels are known; it is read when the optimizer is used.
    """
    name = values["optimizer"]
    kernel = "fused" if values["fused"] else "foreach" if values["foreach"] else "single"
    needs_kernel = values["fused"] or values["optimizer_in_backward"]
    if not needs_kernel or optimizers.optimizer_named(name).has_kernel(kernel):
        return None
    if values["fused"]:
        return (
            f"fused = true: optimizer = {name}: no fused kernel of it was traced; allowed: "
            "optimizer: adamw, or fused: false"
        )
    return (
        f"optimizer_in_backward = true: optimizer = {name}: the temporary tensors of its step were "
        "not traced; allowed: an optimizer of torch"
    )


def sizes_are_whole(values: Mapping[str, Any]) -> str | None:
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


def parts_are_stepped(values: Mapping[str, Any]) -> str | None:
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
