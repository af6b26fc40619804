"""Decoders whose layers read embeddings of their own: Gemma 3n and the text models of Gemma 4."""

from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any, ClassVar

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.base import Depth, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_pattern import instances, pattern
from modelbudget.architecture.run_adapter import OF_FROZEN
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import (
    altup,
    embedding,
    kv_cache,
    laurel,
    moe_branch,
    norm,
    per_layer_embeddings,
    rope,
    scaled_dot_product,
)
from modelbudget.components.altup import AltUpFields
from modelbudget.components.attention.attention_fields import AttentionFields
from modelbudget.components.contract import Values
from modelbudget.components.embedding import HeadFields, TokenFields
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.moe import MoEFields
from modelbudget.components.language_model import in_order, make_layers, with_head
from modelbudget.components.laurel import LaurelFields
from modelbudget.components.mixers import attention
from modelbudget.components.mixers.sliding_attention import WindowFields
from modelbudget.components.per_layer_embeddings import PerLayerInputFields
from modelbudget.components.position import causal_bias
from modelbudget.memory.parameter_tensors import numbers
from modelbudget.operations.joining import cat
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part

OF_KEYS = ("key", "value", "key_norm")
"""Components of attention that layers without keys of their own do not have."""
NORMS = ("attention", "attention_output", "mlp", "mlp_output")
Mixers: Any = pattern("attention", "sliding_attention")


class PerLayerInput(
    HeadFields,
    AltUpFields,
    LaurelFields,
    PerLayerInputFields,
    WindowFields,
    MoEFields,
    AttentionFields,
    TokenFields,
):
    """A decoder with RoPE, norms before and after each part, and inputs of each layer.

    The last n_kv_shared_layer layers attend to the keys and values of the last layer before them
    that has the same mixer.
    """

    switches_of_run: ClassVar[tuple[str, ...]] = OF_FROZEN
    has_cache: ClassVar[bool] = True

    n_layer: Depth
    mixers: Mixers = "attention"
    n_kv_shared_layer: Size = 0
    wide_mlp: bool = False
    d_full_head: Size = 0
    n_full_kv_head: Size = 0
    values_are_keys: bool = False

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """Count the parameters of each component."""
        return _parameters(a, a.n_expert)

    @staticmethod
    def active_parameters(a: Fields) -> Terms:
        """Count the parameters that one token uses: of the routed experts, only the selected."""
        return _parameters(a, a.n_expert_per_token)

    @staticmethod
    def model_program(a: Fields, r: Run):
        """Tokens (batch, length) to logits (batch, length, n_vocab)."""
        token = make_part("embedding.token", embedding.token_program, a, r)
        of_layers = None
        if a.d_per_layer:
            name = "embedding.per_layer"
            of_layers = make_part(name, per_layer_embeddings.program_of_model, a, r)
        altup_ = make_part("altup", altup.streams_program, a)
        n_with_keys = a.n_layer - a.n_kv_shared_layer
        names = list(islice(cycle(a.mixers.split()), a.n_layer))
        layers = make_layers(
            a.n_layer, lambda i: make_part("layer", _layer, a, r, names[i], i >= n_with_keys)
        )
        final_norm = norm.make("norm.final", a, r)
        head = make_part("head", embedding.head_program, a, r, token.weight)

        def stream(tokens):
            x = token(tokens)
            embedded = [None] * a.n_layer if of_layers is None else of_layers.forward(tokens, x)
            streams, keys_values, shared = altup_.forward(x), {}, None
            for i, layer in enumerate(in_order(layers)):
                shared = keys_values[names[i]] if i >= n_with_keys else None
                streams, keys_values[names[i]] = layer(streams, embedded[i], shared)
            return streams, x, embedded, keys_values, shared

        return with_head(stream, lambda streams: final_norm(altup_.end(streams)), head)

    def build(self):
        from modelbudget.modules.per_layer_input import PerLayerInputModel

        return PerLayerInputModel(self)


def _of_layers(a: Fields) -> Values:
    """Count the parameters of attention and MLP of all layers, by component.

    The last layers have no keys and values; the values of full attention may be its keys.
    """
    with_keys = instances(a.mixers, a.n_layer - a.n_kv_shared_layer)
    summed: Values = {}
    for mixer, n_layer in instances(a.mixers, a.n_layer).items():
        is_full = int(mixer == "attention")
        heads = {
            "d_head": _other(is_full, a.d_full_head, a.d_head),
            "n_kv_head": _other(is_full, a.n_full_kv_head, a.n_kv_head),
        }
        for shares, n in (0, with_keys[mixer]), (1, n_layer - with_keys[mixer]):
            d_ff = (1 + shares * a.wide_mlp) * a.d_ff
            fields = SimpleNamespace(**vars(a) | heads | {"d_ff": d_ff})
            has = dict.fromkeys(OF_KEYS, 1 - shares)
            has["value"] *= 1 - is_full * a.values_are_keys
            for name, value in numbers(attention.tensors(fields)).items():
                path = f"attention.{name}"
                summed[path] = summed.get(path, 0) + n * has.get(name, 1) * value
            for name, value in numbers(mlp.tensors(fields)).items():
                summed[f"mlp.{name}"] = summed.get(f"mlp.{name}", 0) + n * value
    return summed


def _other(is_full: int, size, usual):
    """Return the size of layers with full attention, where they have one of their own."""
    differs = is_full * positive(size)
    return differs * size + (1 - differs) * usual


def _parameters(a: Fields, n_expert) -> Terms:
    """Count parameters, with so many experts in a layer, by component."""
    n_layer, one_norm = a.n_layer, norm.parameters(a)
    norms = dict.fromkeys(NORMS, one_norm)
    norms |= dict.fromkeys(moe_branch.NORMS, positive(a.n_expert) * one_norm)
    return {
        **part("", {"embedding.token": embedding.token(a), "head": embedding.head(a)}),
        **part("embedding.per_layer", numbers(per_layer_embeddings.of_model(a))),
        **part("altup", numbers(altup.of_model(a))),
        **part("layer", _of_layers(a)),
        **part("layer.norm", norms, n_layer),
        **part("layer.moe", numbers(moe_branch.of_layer(a, n_expert)), n_layer),
        **part("layer.per_layer", numbers(per_layer_embeddings.of_layer(a)), n_layer),
        **part("layer.altup", numbers(altup.of_layer(a)), n_layer),
        **part("layer.laurel", numbers(laurel.of_layer(a)), n_layer),
        **part("norm", {"final": one_norm}),
    }


def _layer(a: Fields, r: Run, mixer: str, shares: bool):
    """Streams (n_stream, batch, length, d_model) to streams of the same shape."""
    attention_ = make_part("attention", _attention, a, r, mixer, shares)
    of_mlp = make_part("mlp", mlp.program, a, r, (1 + a.wide_mlp * shares) * a.d_ff)
    norms = {name: norm.make(f"norm.{name}", a, r) for name in NORMS}
    of_experts = moe_branch.program(a, r) if a.n_expert else None
    altup_ = make_part("altup", altup.program, a, r) if a.n_stream > 1 else None
    laurel_ = make_part("laurel", laurel.program, a, r) if a.d_laurel else None
    per_layer = None
    if a.d_per_layer:
        per_layer = make_part("per_layer", per_layer_embeddings.program_of_layer, a, r)

    def forward(streams, embedded, keys_values):
        predicted = streams if altup_ is None else altup_(streams)
        x = predicted.select(0)
        normed = norms["attention"](x)
        change, keys_values = attention_(normed, keys_values)
        x = x + norms["attention_output"](change)
        if laurel_ is not None:
            x = (x + laurel_(normed)) * 0.7
        x = x + norms["mlp_output"](feed_forward(x))
        if altup_ is None:
            x = x if per_layer is None else x + per_layer(x, embedded)
            return x.unsqueeze(0), keys_values
        corrected = altup_.correct(predicted, x)
        if per_layer is not None:
            more = per_layer(corrected.select(0) * altup_.scale, embedded)
            n = a.n_stream - 1
            corrected = cat(
                (corrected.narrow(0, 1), corrected.narrow(0, n, is_first=False) + more), 0
            )
        return corrected, keys_values

    def feed_forward(x):
        if of_experts is None:
            return of_mlp(norms["mlp"](x))
        return of_experts(of_mlp(norms["mlp"](x)), x)

    return forward


def _attention(a: Fields, r: Run, mixer: str, shares: bool):
    """States (batch, length, d_model) to states, and the keys and values that they attend."""
    is_full = mixer == "attention"
    window = 0 if is_full else a.window
    d_head = (is_full and a.d_full_head) or a.d_head
    n_kv_head = (is_full and a.n_full_kv_head) or a.n_kv_head
    width, has_norm = a.n_head * d_head, a.qk_norm != "none"
    query = make_linear("query", a.d_model, width, a.query_bias)
    query_norm = _head_norm("query_norm", a, r, d_head)
    core = make_part("core", scaled_dot_product.program, r)
    output = make_linear("output", width, a.d_model, a.output_bias)
    if not shares:
        key_of = make_linear("key", a.d_model, n_kv_head * d_head, a.key_bias)
        has_value = window or not a.values_are_keys
        value_of = (
            make_linear("value", a.d_model, n_kv_head * d_head, a.value_bias) if has_value else None
        )
        key_norm = _head_norm("key_norm", a, r, d_head)
        cache = kv_cache.declare(r, [(n_kv_head, d_head)] * 2, window)

    def forward(x, keys_values):
        return attend(x, keys_values if shares else own(x))

    def attend(x, keys_values):
        k, v = keys_values
        q = rope.rotate(by_head(query(x), query_norm), d_head)
        bias = causal_bias(x.shape[1], x.dtype, window) if 0 < window < x.shape[1] else None
        result = core(q, k, v, bias).transpose(1, 2).flatten(2)
        return output(result), keys_values

    def own(x):
        """Return keys and values, of which the latter have a norm without a scale."""
        key = key_of(x)
        v = by_head(key if value_of is None else value_of(x))
        k = rope.rotate(by_head(key, key_norm), d_head)
        if has_norm:
            v = norm.rms_norm(r)(v, 1, None)
        return (k, v) if cache is None else tuple(cache.append(k, v))

    def by_head(x, head_norm=None):
        """(batch, length, heads · d_head) to (batch, heads, length, d_head)."""
        x = x.unflatten(2, (x.shape[2] // d_head, d_head))
        return (x if head_norm is None else head_norm(x)).transpose(1, 2)

    return forward


def _head_norm(name: str, a: Fields, r: Run, d_head):
    if a.qk_norm == "none":
        return None
    return norm.make(name, a, r, (d_head,), a.qk_norm_bias)
