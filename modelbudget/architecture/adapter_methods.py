"""Methods of adapters: the tensors that each adds, as data (`configs/adapters.yaml`)."""

from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from modelbudget.common.expressions import Expression
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, read_strict

Shapes = dict[str, list[str | int]]
ALL_LINEAR, ALL_BUT_EXPERTS, EXPERTS, ROUTER = "all-linear", "all-but-experts", "experts", "router"
"""Targets that are no names of linear layers."""


class Method(Strict):
    """One method: shapes of its tensors, as expressions over widths and fields of the run.

    `frozen` tensors are not trained, and `shared` ones neither, of which all targets have one;
    `indices` are buffers of int64;
    `needs` must hold for each target. `forward`: how its products are computed, if that is known.
    """

    source: str
    tensors: Shapes
    shared: Shapes = Field({})
    frozen: list[str] = Field([])
    indices: Shapes = Field({})
    needs: str = "0 = 0"
    forward: (
        Literal[
            "low_rank", "weight_decomposed", "vectors_of_shared", "hadamard", "scaled",
            "singular_values", "hadamard_of_weight", "normalised", "sampled_vectors_of_shared",
            "kronecker", "rotated_blocks", "summed_shards", "rotated_pairs", "reflected",
            "spectrum_of_weight", "circulant",
        ]
        | None
    ) = None  # fmt: skip
    of_experts: bool = False

    @cached_property
    def _expressions(self) -> dict[str, list[Expression]]:
        shapes = self.tensors | self.shared | self.indices
        return {name: [Expression(str(size)) for size in sizes] for name, sizes in shapes.items()}

    def shape(self, name: str, values: dict[str, Any]) -> tuple[Any, ...]:
        """Return the shape of a tensor, from sizes and fields of the run by name."""
        sizes = (size(values) for size in self._expressions[name])
        return tuple(int(size) if isinstance(size, Fraction) else size for size in sizes)

    def why_not(self, values: dict[str, Any]) -> str | None:
        """Return which condition a target does not meet, with its values."""
        condition = Expression(self.needs)
        if condition(values):
            return None
        read = ", ".join(f"{name} = {values[name]}" for name in sorted(condition.names))
        return f"needs {self.needs}, here {read}"


class Methods(Strict):
    """Methods by name: around each target layer, or one for the model; names of layers."""

    source: str
    checked: str
    targets: list[str]
    mixers_without_queries: list[str]
    names_of_llama: dict[str, str]
    names_of_classes: dict[str, str]
    around_layers: dict[str, Method]
    of_model: dict[str, Method]


METHODS = read_strict(CONFIGS / "adapters.yaml", Methods)
OF_LAYERS, OF_MODEL = tuple(METHODS.around_layers), tuple(METHODS.of_model)
OVER_STORED = (None, "low_rank", "vectors_of_shared", "hadamard", "scaled")
"""Products that read no matrix of the base. DoRA reads a copy, in PEFT of few formats."""


def method_of(name: str) -> Method:
    """Return a method by the value of the field `adapter`."""
    return (METHODS.around_layers | METHODS.of_model)[name]


def why_not_run(r) -> str | None:
    """Return why a run cannot be computed with its adapter; None if it can."""
    if r.adapter == "none" or method_of(r.adapter).forward:
        return None
    return f"adapter: {r.adapter}: only its parameters are known"


def why_not_of_model(r) -> str:
    """Return why a family that is no decoder has no virtual tokens."""
    return f"adapter: {r.adapter}: its virtual tokens are known of decoders alone"


def why_not_over_stored(r) -> str | None:
    """Return why a run cannot be computed around quantised layers; None if it can."""
    forward, bitsandbytes = method_of(r.adapter).forward, r.weights.startswith("bnb-")
    if forward in OVER_STORED or (forward == "weight_decomposed" and bitsandbytes):
        return None
    return f"adapter: {r.adapter}: over weights: {r.weights}"


def why_not_of_experts(r) -> str | None:
    """Return why PEFT refuses an adapter of stacked experts; None if it does not.

    `tuners/lora/layer.py`, `ParamWrapper`: no DoRA. LoRA-FA's optimizer would multiply the matrices
    of all experts by each other (`optimizers/lorafa.py`).
    """
    if r.adapter not in ("dora", "lora_fa"):
        return None
    return (
        f"adapter: {r.adapter}: not of stacked experts; allowed: adapter_targets: all-but-experts, "
        "or names of linear layers, such as 'query value'"
    )


def why_not_run_of_experts(r, stack, is_stored: bool) -> str | None:
    """Return why a run with an adapter of stacked experts cannot be computed; None if it can.

    `stack`: the number of experts, none of a router. PEFT's `ParamWrapper` refuses dropout, and
    casts a router's matrices of 16 bits on a CPU.
    """
    setting = (
        f"weights: {r.weights}" if is_stored
        else "n_expert: 1" if stack and stack[0] == 1
        else "adapter_dropout: true" if r.adapter_dropout
        else f"autocast: {r.autocast}" if r.autocast != "none"
        else "backend: cpu" if r.backend == "cpu" and adapter_dtype_of(r) != "float32"
        else f"zero: {r.zero}" if r.zero
        else ""
    )  # fmt: skip
    if not setting:
        return None
    allowed = (
        "a format that leaves them in the dtype (bnb-4bit), or weights_of: dense" if is_stored
        else "adapter_targets: all-but-experts, or names of linear layers, such as 'query value'"
    )  # fmt: skip
    return f"adapter: {r.adapter}: of stacked experts with {setting}; allowed: {allowed}"


def targets_stack(r, target: str) -> bool:
    """Whether stacked experts, or their router, are a target of a run's adapter."""
    return r.adapter != "none" and bool({target, ALL_LINEAR} & {*r.adapter_targets.split()})


def reaches_experts(r) -> bool:
    """Whether a run has an adapter of stacked experts, of which gate and up are one stack then."""
    return targets_stack(r, EXPERTS) and method_of(r.adapter).of_experts


def adapter_dtype_of(r) -> str:
    """Return the dtype of an adapter's tensors."""
    is_float32 = r.adapter in OF_MODEL or r.adapter_dtype == "float32"
    return "float32" if is_float32 else r.dtype


def settings_of(r) -> dict[str, Any]:
    """Return the fields of a run that shapes are expressions of, by their names there."""
    return {
        "rank": r.adapter_rank,
        "block": r.adapter_block,
        "frequencies": r.adapter_frequencies,
        "tokens": r.virtual_tokens,
    }
