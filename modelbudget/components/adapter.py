"""Adapters, as PEFT computes them: around linear layers, of stacked experts, or one for the model.

The base is frozen. What autograd saves then, and which gradients it makes, follows from which
tensors need one; no part of a model knows of adapters. Of stacked experts and of their router, the
sum of weight and product is a matrix, or a stack, of its own (`ParamWrapper`): products read it,
and autograd saves it. Source: peft 0.21.2, tuners/lora/layer.py; torch/nn/utils/parametrize.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from modelbudget.architecture import run_adapter
from modelbudget.architecture.adapter_methods import (
    EXPERTS,
    OF_MODEL,
    ROUTER,
    adapter_dtype_of,
    method_of,
    settings_of,
    targets_stack,
    why_not_of_experts,
    why_not_of_model,
    why_not_over_stored,
    why_not_run,
    why_not_run_of_experts,
)
from modelbudget.architecture.arithmetic import highest
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_pattern import instances
from modelbudget.components import adapter_products
from modelbudget.operations.elementwise import add, dropout
from modelbudget.operations.part import NoProgramError, NotComputedError, make_part, parameter
from modelbudget.operations.products import baddbmm, mm
from modelbudget.operations.tape import Active, Base, Tensor, empty


class WeightChange:
    """A change of a weight (…, d_out, d_in), while its part computes."""

    def __init__(self, weight: Tensor, down: Tensor, up: Tensor, rank):
        self.weight, self.down, self.up, self.rank = weight, down, up, rank
        self.terms: tuple[Tensor, ...] = ()
        self.sum: Tensor | None = None

    def begin(self) -> None:
        """Compute the sum once for nothing: torch checks the shape that a parametrization has."""
        self.terms = self._terms()
        self._sum()

    def read(self) -> Tensor:
        """Return the sum, which is kept until the part has computed (`parametrize.cached`)."""
        if self.sum is None:
            self.sum = self._sum()
        return self.sum

    def end(self) -> None:
        self.terms, self.sum = (), None

    def _terms(self) -> tuple[Tensor, ...]:
        dtype, shape = self.weight.dtype, self.weight.shape
        if len(shape) == 2:
            return ((mm(self.up, self.down) * 2.0).to(dtype),)
        n, d_out, d_in = shape
        down = self.down.view((n, self.rank, d_in))
        up = self.up.view((d_out, self.rank, n)).permute([2, 0, 1])
        return up.to(dtype), down.to(dtype)

    def _sum(self) -> Tensor:
        if len(self.weight.shape) == 2:
            return add(self.weight, *self.terms)
        return baddbmm(self.weight, *self.terms, alpha=2.0)


@contextmanager
def changed(*changes: WeightChange | None) -> Iterator[None]:
    """Add changes to weights while a part computes, the outermost wrapper's first."""
    known = [change for change in changes if change is not None]
    for change in known:
        change.begin()
    try:
        yield
    finally:
        for change in known:
            change.end()


class Adapters:
    """What a run trains: tensors of a method around the layers that it names, parts of a model."""

    def __init__(self, r: Run):
        self.r = r
        self.method = None if r.adapter == "none" else method_of(r.adapter)
        self.dtype = adapter_dtype_of(r)
        self.sizes = settings_of(r) | {"most_in": 0, "most_out": 0}
        self.shared: dict[str, Tensor] = {}
        self.buffers: list[Tensor] = []
        """Live with the model, also those of layers that nothing calls."""
        self.has_layers = self.has_experts = self.has_trained_experts = False
        self.model_has_experts = False
        self.why_not_experts: str | None = None

    def begin(self, a: Fields) -> None:
        """Count the layers with experts, before parts are made."""
        if hasattr(a, "mlps"):
            has_stacks = hasattr(a, "n_encoder_layer")
            n_layer = (
                highest(a.n_encoder_layer, a.n_decoder_layer) if has_stacks
                else a.n_layer - a.n_dense_layer
            )  # fmt: skip
            self.model_has_experts = instances(a.mlps, n_layer).get("moe", 0) > 0

    def trains(self, component: str, is_bias: bool) -> bool:
        return run_adapter.trains(self.r, component, Active.tape.layer, is_bias)

    def copies(self, component: str) -> bool:
        return run_adapter.copies(self.r, component)

    def around(self, base: Base) -> Callable:
        """Return the forward function of a layer, with an adapter if it is a target."""
        if self.method is None or self.r.adapter in OF_MODEL or not self._is_target():
            return base.forward
        widths = {"d_in": base.d_in, "d_out": base.d_out, "feedforward": int(base.name == "down")}
        if why := self.method.why_not(self.sizes | widths):
            raise NotComputedError(f"adapter: {self.r.adapter}: {why}")
        for name, width in (("most_in", base.d_in), ("most_out", base.d_out)):
            self.sizes[name] = max(self.sizes[name], width)
        self.has_layers = True
        values = self.sizes | widths
        tensors = {name: self._declare(name, values) for name in self.method.tensors}
        indices = {
            name: empty(self.method.shape(name, values), "int64") for name in self.method.indices
        }
        self.buffers += indices.values()
        tensors |= indices
        if base.is_stored and (why := why_not_over_stored(self.r)):
            raise NotComputedError(why)
        if self.method.forward is None:
            return base.forward
        if self.method.forward == "weight_decomposed" and base.weight.needs_gradient:
            raise NoProgramError(f"adapter: dora: around trained: {self.r.trained}")
        drop = make_part(
            "lora_dropout", lambda: lambda x: dropout(x, self.r.adapter_dropout, self.r.backend)
        )
        layer = adapter_products.Layer(base, self.r, drop, self.shared)
        product = getattr(adapter_products, self.method.forward)
        return lambda x: product(layer, x, *tensors.values())

    def of_experts(self, name: str, weight: Tensor, is_stored: bool = False) -> WeightChange | None:
        """Declare what stacked experts, or their router, get; gate and up are one stack of both."""
        layer = Active.tape.layer or 0
        target = ROUTER if name == "router" else EXPERTS
        if not targets_stack(self.r, target) or layer < self.r.trained_from_layer:
            return None
        assert self.method is not None
        if why := why_not_of_experts(self.r):
            raise NotComputedError(why)
        if not self.method.of_experts:
            return None
        *stack, d_out, d_in = weight.shape
        n_expert = stack[0] if stack else 1
        why = why_not_run_of_experts(self.r, stack, is_stored)
        self.why_not_experts = self.why_not_experts or why
        self.has_trained_experts |= weight.needs_gradient
        self.has_experts, rank = True, (2 if name == "gate_up" else 1) * self.r.adapter_rank
        down, up = (
            parameter(of, *shape, is_adapter=True, dtype=self.dtype)
            for of, shape in (
                ("lora_A", (n_expert * rank, d_in)), ("lora_B", (d_out, n_expert * rank))
            )
        )  # fmt: skip
        return WeightChange(weight, down, up, rank)

    def finish(self, a: Fields) -> None:
        """Declare what all targets share, and what the model has once."""
        if self.method is None:
            return
        if not (self.has_layers or self.has_experts or self.r.adapter in OF_MODEL):
            raise NotComputedError(f"adapter_targets: {self.r.adapter_targets}, which no layer is")
        for name in self.method.shared:
            self.shared[name] = self._declare(name, self.sizes, is_trained=False)
        if self.r.adapter in OF_MODEL:
            names = ("d_model", "d_emb", "n_layer", "n_kv_head", "d_head")
            if not all(hasattr(a, name) for name in (*names, "mixers")):
                raise NotComputedError(why_not_of_model(self.r))
            if {"mla"} & {*a.mixers.split()} and self.r.adapter == "prefix":
                raise NotComputedError("adapter: prefix: of latent attention")
            sizes = self.sizes | {name: getattr(a, name) for name in names}
            sizes["n_layer"] += sum(times - 1 for times in Active.tape.times.values())
            if why := self.method.why_not(sizes):
                raise NotComputedError(f"adapter: {self.r.adapter}: {why}")
            make_part("adapter", self._of_model, sizes)

    def check_forward(self) -> None:
        """Raise NoProgramError if it is not known how the products are computed."""
        if why := self.why_not_experts or why_not_run(self.r):
            raise NotComputedError(why)
        if self.has_trained_experts:
            raise NoProgramError(f"adapter: {self.r.adapter}: around trained: {self.r.trained}")

    def _is_target(self) -> bool:
        tape = Active.tape
        return run_adapter.is_target(self.r, tape.scope, tape.layer, self.model_has_experts)

    def _declare(self, name: str, values: dict[str, Any], is_trained: bool = True) -> Tensor:
        """Declare a tensor; a matrix of low rank is the weight of a layer of its own."""
        assert self.method is not None
        is_trained = is_trained and name not in self.method.frozen
        shape = self.method.shape(name, values)
        return parameter(name, *shape, is_trained=is_trained, is_adapter=True, dtype=self.dtype)

    def _of_model(self, sizes: dict[str, Any]) -> Callable:
        assert self.method is not None
        for name in self.method.tensors:
            self._declare(name, sizes)
        return _uncomputed


def _uncomputed(x):
    raise NotComputedError("adapter: only its parameters are known")
