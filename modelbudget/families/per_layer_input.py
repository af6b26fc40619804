"""Decoders whose layers read embeddings of their own: Gemma 3n and the text models of Gemma 4."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from modelbudget.architecture.base import Depth, Size
from modelbudget.architecture.constraint import Check, Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_pattern import instances, pattern
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import one_token, tokens
from modelbudget.architecture.terms import Terms, merged, part
from modelbudget.components import altup, contract, embedding, laurel, norm, per_layer_embeddings
from modelbudget.components.altup import AltUpFields
from modelbudget.components.attention.attention_fields import AttentionFields
from modelbudget.components.contract import Values
from modelbudget.components.embedding import HeadFields, TokenFields
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.laurel import LaurelFields
from modelbudget.components.mixers import attention, sliding_attention
from modelbudget.components.mixers.sliding_attention import WindowFields
from modelbudget.components.per_layer_embeddings import PerLayerInputFields
from modelbudget.memory.parameter_tensors import Tensor, matrix, sums, vector

MIXERS = {"attention": attention, "sliding_attention": sliding_attention}
OF_KEYS = ("key", "value", "key_norm")
"""Components of attention that layers without keys of their own do not have."""
NORMS = ("attention", "attention_output", "mlp", "mlp_output")
Mixers = pattern(*MIXERS)


class _Kind(NamedTuple):
    """Layers of one kind: their mixer, its fields, what keys and values they have, their number."""

    mixer: Any
    a: Fields
    has_keys: int
    has_values: Any
    n_layer: Any

    def with_own(self, values: Values) -> Values:
        """Return the values of the components of attention that these layers have."""
        found = {name: n for name, n in values.items() if self.has_keys or name not in OF_KEYS}
        own = {name: self.has_values * n for name, n in found.items() if name == "value"}
        return found | own


class PerLayerInput(
    HeadFields,
    AltUpFields,
    LaurelFields,
    PerLayerInputFields,
    WindowFields,
    MLPFields,
    AttentionFields,
    TokenFields,
):
    """A decoder with RoPE, norms before and after each part, and inputs of each layer.

    The last n_kv_shared_layer layers attend to the keys and values of the last layer before them
    that has the same mixer.
    """

    has_cache: ClassVar[bool] = True

    n_layer: Depth = Field(description="layers, each attention and an MLP")
    mixers: Mixers = Field(  # pyright: ignore[reportInvalidTypeForm]
        "attention", description="the mixer of each layer, repeated over the layers"
    )
    n_kv_shared_layer: Size = Field(
        0, description="last layers that use the keys and values of a layer before them"
    )
    wide_mlp: bool = Field(
        False, description="layers that share keys and values have an MLP of twice d_ff"
    )
    d_full_head: Size = Field(
        0, description="mixers: attention: width of one head, where it is not d_head; 0: d_head"
    )
    n_full_kv_head: Size = Field(
        0, description="mixers: attention: key and value heads, if not n_kv_head; 0: n_kv_head"
    )
    values_are_keys: bool = Field(
        False, description="mixers: attention: values are the keys, with no matrix of their own"
    )

    constraints: ClassVar[tuple[Check, ...]] = (
        Constraint(
            "window",
            "window = 0: sliding_attention in mixers needs at least 1",
            when="'sliding_attention' in mixers",
        ),
        Constraint(
            "d_per_layer",
            "n_stream = {n_stream} needs d_per_layer: the first stream's scale is for what is "
            "added to the others",
            when="n_stream > 1",
        ),
        Constraint(
            "n_kv_shared_layer < n_layer",
            "n_kv_shared_layer = {n_kv_shared_layer}: must be less than n_layer = {n_layer}",
        ),
        *(
            Constraint(
                f"count('{name}', mixers, n_layer) == 0 or "
                f"count('{name}', mixers, n_layer - n_kv_shared_layer) > 0",
                f"n_kv_shared_layer = {{n_kv_shared_layer}}: no layer of {name} before them has "
                "keys and values; mixers: {mixers}",
            )
            for name in MIXERS
        ),
        *(
            Constraint(f"not {name}", f"{name} = true: not known yet in this family", when=name)
            for name in ("sinks", "attention_gate", "inner_norm")
        ),
        Constraint(
            "n_full_kv_head == 0 or n_head % n_full_kv_head == 0",
            "n_full_kv_head = {n_full_kv_head} does not divide n_head = {n_head}",
        ),
        Constraint(
            "qk_norm in ('none', 'shared')",
            "qk_norm = '{qk_norm}': allowed: none, shared",
        ),
        Constraint("activation != 'xielu'", "activation = xielu: not known yet in this family"),
    )

    @classmethod
    def _holds(cls, quantity: str, a: Fields, r: Run):
        """1 where attention has the formula, else 0."""
        holds = 1
        for kind in _kinds(a):
            holds = holds * contract.has_formula(kind.mixer, quantity, kind.a, r)
        return holds

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """Count the parameters of each component."""
        return _of_tensors(a, lambda tensor: tensor.numbers)

    @staticmethod
    def trained_tensors(a: Fields) -> Terms:
        return _of_tensors(a, lambda tensor: 1)

    @staticmethod
    def flops_forward(a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        return _flops(a, r, 1, lambda kind: kind.mixer.flops(kind.a, r))

    @staticmethod
    def flops_backward(a: Fields, r: Run) -> Terms:
        """FLOPs of the gradients."""
        return _flops(a, r, 2, lambda kind: kind.mixer.flops_backward(kind.a, r))

    @staticmethod
    def flops_decode(a: Fields, r: Run) -> Terms:
        """FLOPs of one more token for each sequence, after `length` tokens."""
        return _flops(a, one_token(r), 1, lambda kind: kind.mixer.flops_decode(kind.a, r))

    @staticmethod
    def cache_bytes(a: Fields, r: Run) -> Terms:
        """Keys and values of the layers that have their own."""
        return merged(
            *(
                part("layer.attention", kind.mixer.cache(kind.a, r), kind.has_keys * kind.n_layer)
                for kind in _kinds(a)
            )
        )

    def build(self):
        from modelbudget.modules.per_layer_input import PerLayerInputModel

        return PerLayerInputModel(self)


def _kinds(a: Fields) -> Iterator[_Kind]:
    """Yield the kinds of layers that a model's pattern names."""
    n_all = instances(a.mixers, a.n_layer)
    with_keys = instances(a.mixers, a.n_layer - a.n_kv_shared_layer)
    for name, n_layer in n_all.items():
        is_full = int(name == "attention")
        heads = {
            "d_head": _other(is_full, a.d_full_head, a.d_head),
            "n_kv_head": _other(is_full, a.n_full_kv_head, a.n_kv_head),
        }
        own = SimpleNamespace(**vars(a) | heads)
        yield _Kind(MIXERS[name], own, 1, 1 - is_full * a.values_are_keys, with_keys[name])
        d_ff = (1 + a.wide_mlp) * a.d_ff
        shared = SimpleNamespace(**vars(own) | {"d_ff": d_ff})
        yield _Kind(MIXERS[name], shared, 0, 0, n_layer - with_keys[name])


def _other(is_full: int, size, usual):
    """Return the size of layers with full attention, where they have one of their own."""
    differs = is_full * positive(size)
    return differs * size + (1 - differs) * usual


def _in_layers(a: Fields, of_kind: Callable[[_Kind], Values], of_all: Values) -> Terms:
    """Add up the values of all kinds of layers, and those that all layers have."""
    summed: Values = {}
    for kind in _kinds(a):
        for name, value in of_kind(kind).items():
            summed[name] = summed.get(name, 0) + kind.n_layer * value
    return part("layer", summed) | part("layer", of_all, a.n_layer)


def _named(name: str, values: Values) -> Values:
    return {f"{name}.{leaf}".removesuffix("."): value for leaf, value in values.items()}


def _parts_of_layer(a: Fields) -> dict[str, list[Tensor]]:
    return {
        "per_layer": per_layer_embeddings.of_layer(a),
        "altup": altup.of_layer(a),
        "laurel": laurel.of_layer(a),
    }


def _of_tensors(a: Fields, value: Callable[[Tensor], Any]) -> Terms:
    """Sum a value of each parameter tensor, by component."""
    (one_norm,) = sums(norm.tensors(a, "norm"), value).values()

    def of_kind(kind: _Kind) -> Values:
        found = kind.with_own(sums(kind.mixer.tensors(kind.a), value))
        return _named("attention", found) | _named("mlp", sums(mlp.tensors(kind.a), value))

    of_all = {f"norm.{name}": one_norm for name in NORMS}
    for name, tensors in _parts_of_layer(a).items():
        of_all |= _named(name, sums(tensors, value))
    ends = [
        matrix("embedding.token", embedding.rows(a), a.d_model),
        matrix("head", embedding.rows(a), a.d_model, 1 - a.tied),
        vector("head", embedding.rows(a), a.head_bias),
    ]
    found = {
        "norm.final": one_norm,
        **sums(ends, value),
        **_named("embedding.per_layer", sums(per_layer_embeddings.of_model(a), value)),
        **_named("altup", sums(altup.of_model(a), value)),
    }
    return part("", found) | _in_layers(a, of_kind, of_all)


def _flops(a: Fields, r: Run, passes: int, of_attention: Callable[[_Kind], Values]) -> Terms:
    """Two operations for each weight and token; attention and AltUp count their own."""

    def products(tensors: list[Tensor]) -> Values:
        matrices = [one for one in tensors if one.name not in ("norm", "token")]
        return sums(matrices, lambda one: passes * 2 * tokens(r) * one.numbers)

    def of_kind(kind: _Kind) -> Values:
        of_mlp = {name: passes * n for name, n in mlp.flops(kind.a, r).items()}
        return _named("attention", kind.with_own(of_attention(kind))) | _named("mlp", of_mlp)

    of_all = {name: passes * n for name, n in _named("altup", altup.flops(a, r)).items()}
    for name in ("per_layer", "laurel"):
        of_all |= _named(name, products(_parts_of_layer(a)[name]))
    ends = {
        "head": passes * 2 * tokens(r) * embedding.token(a),
        **_named("embedding.per_layer", products(per_layer_embeddings.of_model(a))),
        **_named("altup", products(altup.of_model(a))),
    }
    return part("", ends) | _in_layers(a, of_kind, of_all)
