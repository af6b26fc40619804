"""Encoders: BERT, RoBERTa, ALBERT and ModernBERT are switches of one record."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from modelbudget.architecture import Count, Depth, Size
from modelbudget.components import embedding, mlp, multi_head, norm
from modelbudget.components.embedding import HeadFields, LearnedPositionFields, WordFields
from modelbudget.components.mlp import MLPFields
from modelbudget.components.multi_head import MultiHeadFields
from modelbudget.components.norm import NormFields
from modelbudget.terms import Terms, part


class Encoder(
    NormFields, MLPFields, MultiHeadFields, LearnedPositionFields, HeadFields, WordFields
):
    """A masked language model: every token looks at all the others.

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
    d_embedding: Count = Field(description="width of the embeddings")
    factorised: bool = Field(False, description="a matrix leads from d_embedding to d_model")
    norm_first: bool = Field(
        False, description="norms stand before attention and MLP, not after the residual sum"
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

    derived: ClassVar[dict[str, str]] = {"n_distinct": "n_layer", "d_embedding": "d_model"}

    @model_validator(mode="after")
    def layers_are_shared_evenly(self) -> Self:
        if self.n_layer % self.n_distinct:
            raise ValueError(
                f"n_distinct = {self.n_distinct} does not divide n_layer = {self.n_layer}; "
                "each distinct layer is passed equally often"
            )
        return self

    @model_validator(mode="after")
    def embeddings_reach_the_stream(self) -> Self:
        if not self.factorised and self.d_embedding != self.d_model:
            raise ValueError(
                f"d_embedding = {self.d_embedding} differs from d_model = {self.d_model}; "
                "only factorised: true has a matrix between the two"
            )
        if self.factorised and not self.transform:
            raise ValueError(
                "transform = false with factorised = true; "
                "the head is d_embedding wide, and only the transform leads there"
            )
        return self

    @model_validator(mode="after")
    def first_layer_is_its_own(self) -> Self:
        if not self.first_norm and (not self.norm_first or self.n_distinct != self.n_layer):
            raise ValueError(
                "first_norm = false needs norm_first: true and n_distinct = n_layer; "
                "the first layer then differs from the others"
            )
        return self

    @model_validator(mode="after")
    def sentences_are_pooled(self) -> Self:
        if self.next_sentence and not self.pooler:
            raise ValueError("next_sentence = true needs pooler: true, which it reads")
        return self

    @model_validator(mode="after")
    def rotary_turns_pairs(self) -> Self:
        if self.position == "rotary" and self.d_head % 2:
            raise ValueError(
                f"d_head = {self.d_head} is odd; position: rotary turns pairs of channels"
            )
        return self

    @staticmethod
    def parameters(a) -> Terms:
        """BERT: Devlin et al. 2019, §3; shared layers and factorised embedding: Lan et al. 2020,
        §3.1; ModernBERT: Warner et al. 2024, §2.1.
        """
        wide, narrow = norm.parameters(a), norm.parameters(a, a.d_embedding)
        dense = a.d_model * a.d_embedding + a.transform_bias * a.d_embedding
        return {
            **part(
                "embedding",
                {
                    "token": embedding.token(a, a.d_embedding),
                    "position": embedding.learned(a, a.d_embedding),
                    "segment": a.n_segment * a.d_embedding,
                    "norm": a.embedding_norm * narrow,
                    "projection": a.factorised * (a.d_embedding + 1) * a.d_model,
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
                    "head": embedding.head(a, a.d_embedding),
                },
            ),
        }

    def build(self):
        from modelbudget.modules.encoder import EncoderModel

        return EncoderModel(self)
