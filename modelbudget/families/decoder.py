"""The composable decoder: GPT-2, Llama, PaLM, DeepSeek and their relatives are switches of one
record.
"""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

from pydantic import Field

from modelbudget.architecture.base import Depth, Size
from modelbudget.architecture.constraint import Check, Constraint
from modelbudget.architecture.layer_pattern import instances, pattern
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_config import MASKS, bytes_of, tokens
from modelbudget.architecture.terms import Term, Terms, part, scaled, total
from modelbudget.components import (
    attention,
    channel_rnn,
    dropout,
    embedding,
    layer,
    mla,
    mlp,
    moe,
    norm,
)
from modelbudget.components.embedding import FactorisedFields, HeadFields, PositionFields
from modelbudget.components.layer import LayerFields
from modelbudget.components.mla import LatentFields
from modelbudget.components.moe import ExpertsFields
from modelbudget.memory import activation_checkpointing, inference, optimizer, training
from modelbudget.memory import adamw_temporaries as tensors_in_order

NEEDS = {
    "local": ("mixers", ("window",)),
    "experts": ("mlps", ("n_expert", "n_expert_per_token", "d_expert")),
    "latent": ("mixers", ("kv_lora_rank", "d_nope", "d_rope", "d_value")),
    "recurrent": ("mixers", ("d_hidden",)),
}
"""What a part needs: the pattern that names it, and the sizes that are 0 without it."""

ATTENTION = {"attention", "local"}
"""Mixers that are attention, of all tokens or of those in a window."""

ATTENTION_IN = "'attention' in {0} or 'local' in {0}"
"""Whether a pattern holds any of them."""

OF_ATTENTION = {
    name: f"{name} = true"
    for name in ("query_bias", "key_bias", "value_bias", "output_bias", "sinks")
} | {"qk_norm != 'none'": "qk_norm: {qk_norm}", f"position in {MASKS}": "position: {position}"}
"""What only attention has, and how a message names it."""


def _needed(size: str, word: str, field: str) -> tuple[Constraint, Constraint]:
    """A part and a size of it: neither without the other."""
    there = f"'{word}' in {field}"
    return (
        Constraint(size, f"{size} = 0: {word} in {field} needs at least 1", when=there),
        Constraint(there, f"{size} = {{{size}}} needs {word} in {field}", when=size),
    )


def empty_layer(values: Mapping[str, Any]) -> str | None:
    """The first layer without mixer and MLP. No expression, for it compares two patterns layer by
    layer.
    """
    if "none" not in (mixers := values["mixers"].split()):
        return None
    if "none" not in (mlps := values["mlps"].split()):
        return None
    n_dense_layer, period = values["n_dense_layer"], math.lcm(len(mixers), len(mlps))
    for i in range(min(values["n_layer"] - n_dense_layer, period)):
        if mixers[(n_dense_layer + i) % len(mixers)] == mlps[i % len(mlps)] == "none":
            return f"layer {n_dense_layer + i + 1} is empty: none in mixers and in mlps"
    return None


class Decoder(
    HeadFields, PositionFields, ExpertsFields, LatentFields, LayerFields, FactorisedFields
):
    """A language model: embedding, n_layer layers of a mixer and an MLP, final norm, head."""

    switches_of_run: ClassVar[tuple[str, ...]] = ("dropout", "recompute")
    has_cache: ClassVar[bool] = True

    n_layer: Depth = Field(description="layers, each one mixer and one MLP")
    mixers: pattern("attention", "local", "latent", "recurrent", "none") = Field(
        "attention", description="what mixes the positions in each layer, repeated over the layers"
    )
    window: Size = Field(
        0, description="mixers: local: tokens that attention of that kind sees, itself included"
    )
    mlps: pattern("mlp", "experts", "none") = Field(
        "mlp", description="what follows in each layer, repeated over the layers"
    )
    n_dense_layer: Size = Field(0, description="first layers with a plain MLP, whatever mlps says")
    d_hidden: Size = Field(0, description="mixers: recurrent: hidden size of each channel's cell")
    embedding_norm: bool = Field(False, description="a norm between embedding and first layer")
    final_norm: bool = Field(True, description="a norm between the last layer and the head")

    constraints: ClassVar[tuple[Check, ...]] = (
        *(
            one
            for word, (field, sizes) in NEEDS.items()
            for size in sizes
            for one in _needed(size, word, field)
        ),
        *(
            Constraint(
                ATTENTION_IN.format("first(mixers, n_layer)"),
                f"{given} needs attention in mixers, which are '{{mixers}}'",
                when=when,
            )
            for when, given in OF_ATTENTION.items()
        ),
        Constraint(
            "position == 'rotary'",
            "position: {position}: latent in mixers needs position: rotary",
            when="'latent' in mixers",
        ),
        Constraint(
            "position == 'rotary' and d_rotary <= d_head",
            "d_rotary = {d_rotary} needs position: rotary and at most d_head = {d_head} channels; "
            "position: {position}",
            when="d_rotary",
        ),
        *(
            Constraint(
                f"{name} % 2 == 0",
                f"{name} = {{{name}}} is odd; position: rotary turns pairs of channels",
                when=f"position == 'rotary' and {turned} and ({ATTENTION_IN.format('mixers')})",
            )
            for name, turned in (("d_rotary", "d_rotary"), ("d_head", "not d_rotary"))
        ),
        Constraint(
            "n_dense_layer <= n_layer",
            "n_dense_layer = {n_dense_layer} is more than n_layer = {n_layer}",
        ),
        Constraint(
            "'none' not in mixers and 'none' not in mlps",
            "parallel = true needs a mixer and an MLP in each layer, not none",
            when="parallel",
        ),
        empty_layer,
    )

    @staticmethod
    def parameters(a) -> Terms:
        """All parameters: those of every expert."""
        return parameters(a, moe.parameters(a, a.n_expert))

    @staticmethod
    def active_parameters(a) -> Terms:
        """The parameters that one token uses: all but the routed experts that it passes by.

        The input embedding counts in full, as in Mixtral's and Qwen 3's figures; DeepSeek's and
        gpt-oss's leave it out.
        """
        return parameters(a, moe.parameters(a, a.n_expert_per_token))

    @staticmethod
    def covered(quantity, a, r):
        """Training: attention without a mask of its own (ALiBi, T5's and relative positions, sinks
        have one), latent or not, but for flash attention, which wants values as wide as keys; with
        MLPs or experts of any kind; recomputed layers end with one of these.
        Caches: all that can be remembered. No peaks of use where a window hides scores.
        """
        if quantity == "cache_bytes":
            return int(a.position not in MASKS)
        sees_all = 1
        if "local" in a.mixers.split():
            sees_all = positive(a.window - r.length + 1)
        if quantity == "peak_inference_bytes":
            return inference.covered(a, r) * sees_all * (1 - a.sinks)
        kinds = set(a.mixers.split())
        if not kinds <= {*ATTENTION, "latent", "none"}:
            return 0
        if "latent" in kinds and r.attention_kernel == "flash":
            return 0
        if r.recompute == "full" and "none" in a.mlps.split():
            return 0
        if a.position not in ("none", "learned", "sinusoidal", "rotary"):
            return 0
        known = 1 - a.sinks
        if quantity == "flops_decode":
            return known * sees_all
        return known * training.covered(a, r) if quantity == "peak_training_bytes" else known

    @staticmethod
    def gradient_bytes(a, r) -> Terms:
        """One number in the run's dtype for each parameter that gets a gradient."""
        return scaled(parameters(a, moe.trained(a)), bytes_of(r.dtype))

    @staticmethod
    def optimizer_bytes(a, r) -> Terms:
        return optimizer.states(r, parameters(a, moe.trained(a)), tensors(a))

    @staticmethod
    def activation_bytes(a, r) -> Terms:
        """Bytes that the forward pass and the loss keep for the backward pass."""
        one_norm, dropped = norm.saved(a, r), dropout.saved(a, r)
        ends = embedding.saved(a, r) | {"dropout": dropped}
        if r.recompute == "full":
            inputs = {"layer": bytes_of(r.dtype) * tokens(r) * a.d_model}
            return part("", inputs, a.n_layer) | around_layers(a, ends, one_norm)
        reads_alone = 1 - a.parallel * a.shared_norm
        parts = {
            "attention": attention.saved(a, r),
            "latent": mla.saved(a, r),
            "mlp": mlp.saved(a, r, reads_alone),
            "experts": moe.saved(a, r, reads_alone),
        }
        second = layer.saved_of_second_norm(a, r)
        norms = {"mlp": second, "experts": second}
        terms = assemble(a, ends, parts, one_norm, norms, dropped)
        if "local" in a.mixers.split() and r.recompute == "selective":
            # A core that is computed again is given its window's mask once more.
            n_local = instances(a.mixers, a.n_layer)["local"]
            masks = n_local * layer.saved_mask(r, positive(r.length - a.window))
            terms["layer.attention.core"] = Term(terms["layer.attention.core"].total + masks)
        return terms

    @staticmethod
    def flops_forward(a, r) -> Terms:
        """Operations of matrix products, two for a product and a sum."""
        parts = {
            "attention": attention.flops(a, r),
            "latent": mla.flops(a, r),
            "mlp": mlp.flops(a, r),
            "experts": moe.flops(a, r),
        }
        return assemble(a, embedding.flops(a, r), parts, 0)

    @staticmethod
    def flops_backward(a, r) -> Terms:
        """Each product again twice, for the gradients of both its factors, and what is computed
        again. Flash and memory-efficient attention always compute their scores again: five products
        instead of four (Dao 2024, §3.1.2).
        """
        products = {"math": 4, "flash": 5, "efficient": 5}[r.attention_kernel]
        parts = {
            "attention": attention.flops(a, r, products),
            "latent": mla.flops(a, r, products - 2),
            "mlp": mlp.flops(a, r),
            "experts": moe.flops(a, r),
        }
        again = activation_checkpointing.flops(a, r)
        parts = {
            name: {leaf: 2 * n + again.get(name, {}).get(leaf, 0) for leaf, n in values.items()}
            for name, values in parts.items()
        }
        ends = {name: 2 * n for name, n in embedding.flops(a, r).items()}
        return assemble(a, ends, parts, 0)

    @classmethod
    def peak_training_bytes(cls, a, r) -> Terms:
        """The largest number of bytes that live at once, in each phase of the first and of the
        second step.
        """
        trained, states = total(parameters(a, moe.trained(a))), total(cls.optimizer_bytes(a, r))
        of_parameters, loss = total(cls.parameter_bytes(a, r)), bytes_of(r.dtype)
        saved = of_parameters + total(cls.activation_bytes(a, r)) + loss
        return optimizer.phases(
            r,
            trained,
            of_parameters,
            states,
            optimizer.root(r, trained, tensors_in_order.neighbours(a)),
            lambda held: training.forward_backward(a, r, saved + held),
        )

    @staticmethod
    def cache_bytes(a, r) -> Terms:
        """What the mixers remember of `length` tokens."""
        layers = instances(a.mixers, a.n_layer)
        held = {
            "attention": {"attention": attention.cached(a, r)},
            "local": {"attention.window": attention.cached_locally(a, r)},
            "latent": {"latent": mla.cached(a, r)},
            "recurrent": {"recurrent": channel_rnn.cached(a, r)},
        }
        parts = [part("layer", held[name], layers[name]) for name in held if name in layers]
        return {component: term for terms in parts for component, term in terms.items()}

    @classmethod
    def peak_inference_bytes(cls, a, r) -> Terms:
        """The largest number of bytes that live at once while the prompt is read, and while the
        next token is computed.
        """
        held = total(cls.parameter_bytes(a, r)) + total(cls.cache_bytes(a, r))
        return part("", inference.peaks(a, r, held + embedding.INDEX * tokens(r)))

    @staticmethod
    def flops_decode(a, r) -> Terms:
        """One more token for each sequence: a forward pass of length 1, whose core looks back."""
        one = SimpleNamespace(batch=r.batch, length=1)
        of_attention = attention.flops(a, one)
        of_attention["core"] *= r.length
        of_latent = mla.flops(a, one)
        of_latent |= {name: r.length * of_latent[name] for name in ("kv_up", "core")}
        parts = {
            "attention": of_attention,
            "latent": of_latent,
            "mlp": mlp.flops(a, one),
            "experts": moe.flops(a, one),
        }
        return assemble(a, embedding.flops(a, one), parts, 0)

    def build(self):
        from modelbudget.modules.decoder import DecoderModel

        return DecoderModel(self)


def parameters(a, of_experts: dict) -> Terms:
    """The whole model, with what `of_experts` says of a layer that has any."""
    parts = {
        "attention": attention.parameters(a),
        "latent": mla.parameters(a),
        "recurrent": channel_rnn.parameters(a),
        "mlp": mlp.parameters(a),
        "experts": of_experts,
    }
    if a.position == "relative":
        parts["attention"] |= attention.relative_positions(a)
    ends = {"embedding.position": embedding.position(a), **embedding.factorised(a)}
    return assemble(a, ends, parts, norm.parameters(a))


def tensors(a) -> Terms:
    """Tensors that get a gradient, where `covered`."""
    parts = {
        "attention": attention.tensors(a),
        "latent": mla.tensors(a),
        "mlp": mlp.tensors(a),
        "experts": moe.tensors(a),
    }
    return assemble(a, embedding.tensors(a), parts, norm.tensors(a))


def assemble(
    a,
    ends: dict,
    parts: dict[str, dict],
    one_norm,
    norms: dict | None = None,
    dropped=0,
) -> Terms:
    """Put what each kind of part holds into the layers that have it, between the two ends.

    `one_norm` is what a norm holds; `norms`, by part, where the norm before that part differs;
    `dropped` what the dropout after a part holds.
    """
    layers = instances(a.mixers, a.n_layer) | instances(a.mlps, a.n_layer - a.n_dense_layer)
    if "local" in layers:
        layers["attention"] = layers.get("attention", 0) + layers.pop("local")
    layers["mlp"] = a.n_dense_layer + layers.get("mlp", 0)
    terms = around_layers(a, ends, one_norm)
    for name, values in parts.items():
        if name in layers:
            norm_of_part = (norms or {}).get(name, one_norm)
            held = layer.sublayer(a, name, values, norm_of_part)
            terms |= part("layer", held, layers[name])
    n_part = sum(n for name, n in layers.items() if name != "none")
    terms |= part("layer", {"dropout": dropped}, n_part)
    return terms | part("layer", layer.shared_norm(a, one_norm), a.n_layer)


def around_layers(a, ends: dict, one_norm) -> Terms:
    """The two ends, and the norms between them and the layers."""
    norms = {"embedding": a.embedding_norm * one_norm, "final": a.final_norm * one_norm}
    return part("", ends) | part("norm", norms)
