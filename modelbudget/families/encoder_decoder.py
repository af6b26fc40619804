"""Encoder–decoders: the first Transformer, T5, T5 v1.1 and BART are switches of one record."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Count, Depth
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, multi_head, norm
from modelbudget.components.embedding import HeadFields, LearnedPositionFields, VocabularyFields
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.multi_head import MultiHeadFields
from modelbudget.components.norm import NormFields


class EncoderDecoder(
    NormFields, MLPFields, MultiHeadFields, LearnedPositionFields, HeadFields, VocabularyFields
):
    """The encoder reads the source; the decoder writes the target and attends the encoder's states.

    Source and target share one token embedding.
    """

    n_encoder_layer: Depth = Field(description="layers of attention and MLP")
    n_decoder_layer: Depth = Field(description="layers of attention, cross-attention and MLP")
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

    constraints: ClassVar[tuple[Constraint, ...]] = (
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

    @staticmethod
    def parameters(a) -> Terms:
        """Vaswani et al. 2017, §3; T5: Raffel et al. 2020, §2.1; BART: Lewis et al. 2020, §2.1."""
        one_norm = norm.parameters(a)
        attention = multi_head.parameters(a)
        n_encoder, n_decoder = a.n_encoder_layer, a.n_decoder_layer
        stack = {
            "position": embedding.position(a),  # one table for all layers of a stack
            "norm.embedding": a.embedding_norm * one_norm,
            "norm.final": a.final_norm * one_norm,
        }
        return {
            **part("embedding", {"token": embedding.token(a, a.d_model)}),
            **part("encoder", stack),
            **part("encoder.layer.attention", attention, n_encoder),
            **part("encoder.layer.mlp", mlp.parameters(a), n_encoder),
            **part("encoder.layer.norm", {"attention": one_norm, "mlp": one_norm}, n_encoder),
            **part("decoder", stack),
            **part("decoder.layer.attention", attention, n_decoder),
            **part("decoder.layer.cross", attention, n_decoder),
            **part("decoder.layer.mlp", mlp.parameters(a), n_decoder),
            **part(
                "decoder.layer.norm",
                dict.fromkeys(("attention", "cross", "mlp"), one_norm),
                n_decoder,
            ),
            **part("", {"head": embedding.head(a, a.d_model)}),
        }

    def build(self):
        from modelbudget.modules.encoder_decoder import EncoderDecoderModel

        return EncoderDecoderModel(self)
