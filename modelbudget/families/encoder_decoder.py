"""Encoder–decoders: the first Transformer, T5, T5 v1.1 and BART are switches of one record."""

from collections.abc import Callable
from itertools import cycle, islice
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.base import Count, Depth
from modelbudget.architecture.constraint import Check, Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_pattern import instances, pattern
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import target_tokens
from modelbudget.architecture.terms import Terms, part
from modelbudget.common.attributes import with_attributes
from modelbudget.components import embedding, multi_head, norm
from modelbudget.components.contract import Part, Values
from modelbudget.components.decoder.decoder_constraints import constraints_of
from modelbudget.components.embedding import HeadFields, LearnedPositionFields, VocabularyFields
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.feed_forward.moe import MoEFields
from modelbudget.components.language_model import in_order, make_layers
from modelbudget.components.multi_head import MultiHeadFields
from modelbudget.components.norm import NormFields
from modelbudget.components.position import bucket_of, sinusoids
from modelbudget.operations.activation_checkpoint import checkpoint
from modelbudget.operations.elementwise import compare, without_gradient
from modelbudget.operations.part import make_part
from modelbudget.operations.tape import empty

OfPart = Callable[[Part], Values]
MLPs: Any = pattern(*feed_forward())


class EncoderDecoder(
    NormFields, MoEFields, MultiHeadFields, LearnedPositionFields, HeadFields, VocabularyFields
):
    """The encoder reads the source; the decoder writes the target and attends the encoder's states.

    Source and target share one token embedding.
    """

    n_encoder_layer: Annotated[int, Field(ge=0, le=10_000)]
    n_decoder_layer: Depth
    mlps: MLPs = "mlp"
    position: Literal["sinusoidal", "learned", "buckets"] = "sinusoidal"
    n_bucket: Count = 32
    max_distance: Count = 128
    norm_placement: Literal["pre", "post"] = "post"
    embedding_norm: bool = False
    final_norm: bool = False

    has_cache: ClassVar[bool] = True
    switches_of_run: ClassVar[tuple[str, ...]] = (
        "recompute",
        "target_length",
        "adapter",
        "trained",
        "input_gradient",
    )
    constraints_of_run: ClassVar[tuple[Constraint, ...]] = (multi_head.WHOLE_LAYERS,)

    constraints: ClassVar[tuple[Check, ...]] = (*constraints_of("mlps", feed_forward()),)

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """Vaswani et al. 2017, §3; T5: Raffel et al. 2020, §2.1; BART: Lewis et al. 2020, §2.1.

        Experts: Fedus et al. 2022 (Switch Transformers), §2.
        """
        return _parameters(a, lambda component: component.parameters(a))

    @staticmethod
    def active_parameters(a: Fields) -> Terms:
        """Count the parameters that one token uses: of the routed experts, only the selected."""
        return _parameters(
            a, lambda component: getattr(component, "active_parameters", component.parameters)(a)
        )

    @staticmethod
    def model_program(a: Fields, r: Run):
        """Source tokens (batch, length), and a target's or the same, to the target's logits."""
        token = make_part("embedding.token", embedding.token_program, a, r)
        encoder = make_part("encoder", _stack, a, r, False) if a.n_encoder_layer else None
        decoder = make_part("decoder", _stack, a, r, True)
        head = make_part("head", embedding.head_program, a, r, token.weight)

        def forward(tokens, target=None):
            return decode(tokens if target is None else target, encode(tokens))

        def encode(tokens):
            """Return the encoder's states of a source (batch, length, d_model)."""
            return None if encoder is None else encoder(token(tokens) * 1.0)

        def decode(tokens, memory, start=0):
            """Return logits of a target; with caches, of its tokens from number `start` on."""
            x = decoder(token(tokens) * 1.0, memory, start)
            return head(x * 1.0)

        return with_attributes(forward, encode=encode, decode=decode)

    def why_not_quantised(self, r: RunConfig) -> str:
        if "moe" in self.mlps.split():
            return "experts: their classes have a linear layer for each, which is not described"
        return super().why_not_quantised(r)

    def kept_by_class(self) -> tuple[str, ...]:
        """Of T5 the last one of each MLP, which no quantizer of transformers converts.

        `_keep_in_fp32_modules` of modeling_t5.py and modeling_mt5.py.
        """
        return ("mlp.down",) if self.position == "buckets" and "moe" not in self.mlps else ()

    def build(self):
        from modelbudget.modules.encoder_decoder import EncoderDecoderModel

        return EncoderDecoderModel(self)


def _parameters(a: Fields, of_part: OfPart) -> Terms:
    attention, one_norm = multi_head.parameters(a), norm.parameters(a)
    stack = {
        "position": embedding.position(a),  # one table for all layers of a stack
        "norm.embedding": a.embedding_norm * one_norm,
        "norm.final": a.final_norm * one_norm,
    }
    of_encoder, of_decoder = {"attention": attention}, {"attention": attention, "cross": attention}
    return {
        **part("", {"embedding.token": embedding.token(a), "head": embedding.head(a)}),
        **part("encoder", stack, positive(a.n_encoder_layer)),
        **_layers(a, "encoder", of_encoder, of_part, one_norm, a.n_encoder_layer),
        **part("decoder", stack),
        **_layers(a, "decoder", of_decoder, of_part, one_norm, a.n_decoder_layer),
    }


def _layers(
    a: Fields, stack: str, attention: dict[str, Values], of_part: OfPart, one_norm, n_layer
) -> Terms:
    """Return the terms of the layers of a stack: its parts, and a norm for each."""
    with_part = instances(a.mlps, n_layer)
    parts = {name: (values, n_layer) for name, values in attention.items()}
    parts |= {name: (of_part(feed_forward()[name]), with_part[name]) for name in a.mlps.split()}
    terms: Terms = {}
    for name, (values, n) in parts.items():
        terms |= part(f"{stack}.layer.{name}", values, n)
        terms |= part(f"{stack}.layer.norm", {name: one_norm}, n)
    return terms


def _stack(a: Fields, r: Run, cross: bool):
    """States (batch, length, d_model) to states of the same shape; with `cross` the decoder."""
    if a.position == "learned":
        n_place = a.n_ctx + a.position_offset
        position = make_part("position", embedding.table_program, n_place, a.d_model)
    elif a.position == "buckets":
        position = make_part("position", embedding.table_program, a.n_bucket, a.n_head)
    n_layer = a.n_decoder_layer if cross else a.n_encoder_layer
    names = list(islice(cycle(a.mlps.split()), n_layer))
    n_before = a.n_encoder_layer if cross else 0

    def make(number):
        return make_part("layer", _layer, a, r, cross, names[number])

    layers = make_layers(n_layer, make, n_before)
    embedding_norm = norm.make("norm.embedding", a, r) if a.embedding_norm else lambda x: x
    final_norm = norm.make("norm.final", a, r) if a.final_norm else lambda x: x

    def forward(x, memory=None, start=0):
        length = x.shape[1]
        places = empty((start + length,), "int64")  # live to the end
        if a.position == "learned":
            x = x + position(without_gradient(places.narrow(0, length)))
        elif a.position == "sinusoidal":
            x = x + sinusoids(length, a.d_model, x.dtype)
        x = embedding_norm(x)
        mask = bias_of(length, start + length) if a.position == "buckets" else None
        for layer in in_order(layers, n_before):
            x = layer(x, mask, memory)
        return final_norm(x)

    def bias_of(length, n_key):
        """Return what is added to the scores of all layers, (n_head, length, n_key)."""
        distance = empty((length, n_key), "int64")
        places = bucket_of(distance, both_ways=not cross)  # both live to the end
        bias = position(places).permute((2, 0, 1))
        return bias.masked_fill(compare(distance)) if cross else bias

    return forward


def _layer(a: Fields, r: Run, cross: bool, mlp: str):
    """States (batch, length, d_model) to the same shape; with `cross` they attend others too."""
    names = ("attention", "cross") if cross else ("attention",)
    n_source = r.length if a.n_encoder_layer else 0  # without a source nothing is kept
    keeps = {"attention": target_tokens(r) if cross else 0, "cross": n_source}
    attention = {
        name: make_part(name, multi_head.program, a, r, False, keeps[name]) for name in names
    }
    last = make_part(mlp, feed_forward()[mlp].program, a, r)
    norms = {name: norm.make(f"norm.{name}", a, r) for name in (*names, mlp)}

    def forward(x, mask, memory=None):
        if r.recompute == "full":
            return checkpoint(compute, x, mask, memory)
        return compute(x, mask, memory)

    def compute(x, mask, memory):
        causal = cross and mask is None
        x = added("attention", x, lambda y: attention["attention"](y, causal=causal, mask=mask))
        if memory is not None:
            x = added("cross", x, lambda y: attention["cross"](y, memory))
        return added(mlp, x, last)

    def added(name, x, part):
        """Add what a part makes of x, with the norm before the part or after the sum."""
        norm_ = norms[name]
        if a.norm_placement == "pre":
            return x + part(norm_(x))
        return norm_(x + part(x))

    return forward
