"""Encoder–decoders: the first Transformer, T5, T5 v1.1 and BART are switches of one record."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Count, Depth
from modelbudget.architecture.constraint import Check, Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_pattern import instances, pattern
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import INDEX, bytes_of, tokens
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import contract, embedding, multi_head, norm
from modelbudget.components.contract import ALONE, Part, Values
from modelbudget.components.decoder.decoder_constraints import constraints_of
from modelbudget.components.embedding import HeadFields, LearnedPositionFields, VocabularyFields
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.feed_forward.moe import MoEFields
from modelbudget.components.multi_head import MultiHeadFields
from modelbudget.components.norm import NormFields
from modelbudget.memory.parameter_tensors import counts

OfPart = Callable[[Part], Values]
MLPs = pattern(*feed_forward())


class EncoderDecoder(
    NormFields, MoEFields, MultiHeadFields, LearnedPositionFields, HeadFields, VocabularyFields
):
    """The encoder reads the source; the decoder writes the target and attends the encoder's states.

    Source and target share one token embedding.
    """

    n_encoder_layer: Annotated[int, Field(ge=0, le=10_000)] = Field(
        description="layers of attention and MLP; 0: a decoder alone, whose cross-attention has "
        "parameters and is not computed"
    )
    n_decoder_layer: Depth = Field(description="layers of attention, cross-attention and MLP")
    mlps: MLPs = Field(  # pyright: ignore[reportInvalidTypeForm]
        "mlp", description="the feed-forward part of each layer, repeated over those of a stack"
    )
    position: Literal["sinusoidal", "learned", "buckets"] = Field(
        "sinusoidal", description="buckets: a bias for each range of distances and head, as in T5"
    )
    n_bucket: Count = Field(32, description="ranges of distances")
    max_distance: Count = Field(128, description="distances from here on share a bucket")
    norm_placement: Literal["pre", "post"] = Field(
        "post", description="norms before attention and MLP, or after the residual sum"
    )
    embedding_norm: bool = Field(False, description="each stack has a norm of its embeddings")
    final_norm: bool = Field(False, description="each stack has a norm after its last layer")

    constraints: ClassVar[tuple[Check, ...]] = (
        *constraints_of("mlps", feed_forward()),
        # Half are for each direction, half of those for a single distance each.
        Constraint(
            "n_bucket % 4 == 0",
            "n_bucket = {n_bucket} is not a multiple of 4; "
            "position: buckets halves them by direction, then by near and far",
            when="position == 'buckets'",
        ),
        Constraint(
            "max_distance > n_bucket // 2",
            "max_distance = {max_distance} leaves nothing to the wide buckets; "
            "allowed: more than n_bucket / 2 = {n_bucket // 2}",
            when="position == 'buckets'",
        ),
    )

    @classmethod
    def _holds(cls, quantity: str, a: Fields, r: Run):
        """1 where the attention kernel takes what is added to the scores, and the values.

        Without an encoder, cross-attention gets no gradient.
        """
        adds = int(a.position == "buckets" and r.attention_kernel != "math")
        holds = positive(a.n_encoder_layer) * multi_head.same_widths(a, r) * (1 - adds)
        for one in _feed_forward(a).values():
            holds = holds * contract.has_formula(one, quantity, a, r)
        return holds

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """Vaswani et al. 2017, §3; T5: Raffel et al. 2020, §2.1; BART: Lewis et al. 2020, §2.1.

        Experts: Fedus et al. 2022 (Switch Transformers), §2.
        """
        return _parameters(a, lambda one: one.parameters(a))

    @staticmethod
    def active_parameters(a: Fields) -> Terms:
        """Count the parameters that one token uses: of the routed experts, only the selected."""
        return _parameters(a, lambda one: getattr(one, "active_parameters", one.parameters)(a))

    @staticmethod
    def trained_parameters(a: Fields) -> Terms:
        """Count the parameters that get a gradient."""
        return _parameters(a, lambda one: getattr(one, "trained_parameters", one.parameters)(a))

    @staticmethod
    def trained_tensors(a: Fields) -> Terms:
        ends = {"embedding.token": 1, "head": 1 - a.tied + a.head_bias}
        has_table = int(a.position in ("learned", "buckets"))
        of_attention = counts(multi_head.tensors(a))
        return _assembled(
            a, ends, has_table, of_attention, lambda one: counts(one.tensors(a)), norm.n_tensors(a)
        )

    @staticmethod
    def activation_bytes(a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass.

        Source and target are the same tokens. The states of the source, which all layers of the
        decoder attend, are saved once. With buckets, the decoder saves which scores are hidden.
        """
        pairs = r.length * r.length
        ends = embedding.saved_by_ends(a, r, a.d_model)
        indices = INDEX * {"learned": r.length, "buckets": pairs}.get(a.position, 0)
        of_attention, one_norm = multi_head.saved(a, r), norm.saved(a, r)
        once = {
            "decoder": int(a.position == "buckets") * pairs,
            "decoder.layer.cross.key": bytes_of(r.dtype) * tokens(r) * a.d_model,
        }
        found = _assembled(
            a, ends, indices, of_attention, lambda one: one.saved(a, r, ALONE), one_norm
        )
        return found | part("", once)

    @staticmethod
    def flops_forward(a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        ends = {"head": 2 * tokens(r) * embedding.token(a)}
        return _assembled(a, ends, 0, multi_head.flops(a, r), lambda one: one.flops(a, r))

    @staticmethod
    def flops_backward(a: Fields, r: Run) -> Terms:
        """FLOPs of the gradients."""
        ends = {"head": 4 * tokens(r) * embedding.token(a)}
        of_attention = multi_head.flops_backward(a, r)
        return _assembled(a, ends, 0, of_attention, lambda one: one.flops_backward(a, r))

    def build(self):
        from modelbudget.modules.encoder_decoder import EncoderDecoderModel

        return EncoderDecoderModel(self)


def _feed_forward(a: Fields) -> dict[str, Part]:
    """Return the feed-forward parts that the pattern names, by name."""
    return {name: feed_forward()[name] for name in dict.fromkeys(a.mlps.split())}


def _parameters(a: Fields, of_part: OfPart) -> Terms:
    ends = {"embedding.token": embedding.token(a), "head": embedding.head(a)}
    of_attention = multi_head.parameters(a)
    return _assembled(a, ends, embedding.position(a), of_attention, of_part, norm.parameters(a))


def _assembled(
    a: Fields, ends: Values, position, attention: Values, of_part: OfPart, one_norm=0
) -> Terms:
    """Combine the values of all components; `position`: that of the positions of one stack."""
    stack = {
        "position": position,  # one table for all layers of a stack
        "norm.embedding": a.embedding_norm * one_norm,
        "norm.final": a.final_norm * one_norm,
    }
    return {
        **part("", ends),
        **part("encoder", stack, positive(a.n_encoder_layer)),
        **_layers(a, "encoder", {"attention": attention}, of_part, one_norm, a.n_encoder_layer),
        **part("decoder", stack),
        **_layers(
            a,
            "decoder",
            {"attention": attention, "cross": attention},
            of_part,
            one_norm,
            a.n_decoder_layer,
        ),
    }


def _layers(
    a: Fields, stack: str, attention: dict[str, Values], of_part: OfPart, one_norm, n_layer
) -> Terms:
    """Return the terms of the layers of a stack: its parts, and a norm for each."""
    with_part = instances(a.mlps, n_layer)
    parts = {name: (values, n_layer) for name, values in attention.items()}
    parts |= {name: (of_part(one), with_part[name]) for name, one in _feed_forward(a).items()}
    terms: Terms = {}
    for name, (values, n) in parts.items():
        terms |= part(f"{stack}.layer.{name}", values, n)
        terms |= part(f"{stack}.layer.norm", {name: one_norm}, n)
    return terms
