"""Encoders: BERT, RoBERTa, ALBERT and ModernBERT are switches of one record."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Count, Depth, Size
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.operations import positive
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, multi_head, norm
from modelbudget.components.embedding import FactorisedFields, HeadFields, LearnedPositionFields
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.multi_head import MultiHeadFields
from modelbudget.components.norm import NormFields


class Encoder(
    NormFields, MLPFields, MultiHeadFields, LearnedPositionFields, HeadFields, FactorisedFields
):
    """A masked language model: every token attends all others.

    The `transform` stands between the last layer and the head: a square matrix, the activation
    and a norm. `pooler` and `next_sentence` read the first token's state alone.
    """

    n_layer: Depth = Field(description="layers that a token passes through")
    n_distinct: Depth = Field(
        description="layers with parameters of their own; each is passed n_layer / n_distinct times"
    )
    position: Literal["learned", "rotary"] = "learned"
    n_segment: Size = Field(0, description="kinds of segment, each with an embedding")
    embedding_norm: bool = Field(True, description="a norm of the summed embeddings")
    norm_placement: Literal["pre", "post"] = Field(
        "post", description="norms before attention and MLP, or after the residual sum"
    )
    first_norm: bool = Field(True, description="the first layer's attention has its norm")
    final_norm: bool = Field(False, description="a norm after the last layer")
    window: Size = Field(
        0, description="tokens that a local layer sees, half on each side; 0: all layers see all"
    )
    global_every: Count = Field(1, description="every how-manyth layer sees all tokens")
    pooler: bool = Field(False, description="a dense layer on the first token's state")
    next_sentence: bool = Field(False, description="two classes read from the pooler")
    transform: bool = Field(True, description="dense layer and norm before the head")
    transform_bias: bool = Field(True, description="the transform's dense layer adds a bias")

    derived: ClassVar[dict[str, str]] = {"n_distinct": "n_layer"}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "n_layer % n_distinct == 0",
            "n_distinct = {n_distinct} does not divide n_layer = {n_layer}; "
            "each distinct layer is passed equally often",
        ),
        Constraint(
            "transform",
            "transform = false with d_emb = {d_emb}; "
            "the head is d_emb wide, and only the transform leads there",
            when="d_emb",
        ),
        Constraint(
            "first_norm or norm_placement == 'pre' and n_distinct == n_layer",
            "first_norm = false needs norm_placement: pre and n_distinct = n_layer; "
            "the first layer then differs from the others",
        ),
        Constraint(
            "pooler",
            "next_sentence = true needs pooler: true, which it reads",
            when="next_sentence",
        ),
        Constraint(
            "d_head % 2 == 0",
            "d_head = {d_head} is odd; position: rotary turns pairs of channels",
            when="position == 'rotary'",
        ),
    )

    @staticmethod
    def parameters(a) -> Terms:
        """Count the parameters of each component.

        BERT: Devlin et al. 2019, §3; shared layers and factorised embedding: Lan et al. 2020, §3.1;
        ModernBERT: Warner et al. 2024, §2.1.
        """
        width = embedding.width(a)
        wide, narrow = norm.parameters(a), norm.parameters(a, width)
        dense = a.d_model * width + a.transform_bias * width
        return {
            **part(
                "embedding",
                {
                    "token": embedding.token(a, width),
                    "position": embedding.learned(a, width),
                    "segment": a.n_segment * width,
                    "norm": a.embedding_norm * narrow,
                    "projection": positive(a.d_emb) * (a.d_emb + 1) * a.d_model,
                },
            ),
            **part("layer.attention", multi_head.parameters(a), a.n_distinct),
            **part("layer.mlp", mlp.parameters(a), a.n_distinct),
            **part("layer.norm", {"attention": wide}, a.n_distinct - 1 + a.first_norm),
            **part("layer.norm", {"mlp": wide}, a.n_distinct),
            **part("norm", {"final": a.final_norm * wide}),
            **part(
                "",
                {
                    "pooler": a.pooler * (a.d_model + 1) * a.d_model,
                    "next_sentence": a.next_sentence * 2 * (a.d_model + 1),
                    "transform.dense": a.transform * dense,
                    "transform.norm": a.transform * narrow,
                    "head": embedding.head(a, width),
                },
            ),
        }

    def build(self):
        from modelbudget.modules.encoder import EncoderModel

        return EncoderModel(self)
