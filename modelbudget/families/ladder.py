"""The counting ladder: the parts of a transformer as models of their own, smallest first."""

from typing import Any, ClassVar

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, layer, norm
from modelbudget.components.attention.attention_fields import AttentionFields
from modelbudget.components.embedding import HeadFields, TokenFields
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.layer import LayerFields
from modelbudget.components.mixers import attention
from modelbudget.components.norm import NormFields
from modelbudget.operations.part import make_part


class _Rung:
    """A model that has a function of its name in `modules/ladder.py`."""

    def build(self: Any):
        from modelbudget.modules import ladder

        return getattr(ladder, self.name().replace("-", "_"))(self)


class _SmallestLM(_Rung, HeadFields, TokenFields):
    """A model without layers; in training it is what its program says."""

    has_mlp: ClassVar[bool] = False

    @classmethod
    def parameters(cls, a: Fields) -> Terms:
        ends = {"embedding.token": embedding.token(a), "head": embedding.head(a)}
        return part("", ends) | (part("mlp", mlp.parameters(a)) if cls.has_mlp else {})

    @classmethod
    def model_program(cls, a: Fields, r: Run):
        """Tokens (batch, length) to logits (batch, length, n_vocab)."""
        token = make_part("embedding.token", embedding.table_program, embedding.rows(a), a.d_model)
        between = make_part("mlp", mlp.program, a, r) if cls.has_mlp else None
        head = make_part("head", embedding.head_program, a, r, token.weight)

        def forward(tokens):
            return head(token(tokens) if between is None else between(token(tokens)))

        return forward


class Embedding(_Rung, TokenFields):
    """A table: one row for each token of the vocabulary."""

    @staticmethod
    def parameters(a) -> Terms:
        return part("embedding", {"token": embedding.token(a)})


class EmbeddingLM(_SmallestLM):
    """The smallest language model: look a token up, score every token against it."""


class MLP(_Rung, MLPFields):
    """Two linear layers with an activation between them."""

    @staticmethod
    def parameters(a) -> Terms:
        return part("mlp", mlp.parameters(a))


class FeedForwardLM(_SmallestLM, MLPFields):
    """A language model that reads one token: embedding, MLP, head."""

    has_mlp = True


class Attention(_Rung, AttentionFields):
    """Four projections; the attention itself has no parameters."""

    @staticmethod
    def parameters(a) -> Terms:
        return part("attention", attention.parameters(a))


class Norm(_Rung, NormFields):
    """A scale and a shift for each channel."""

    @staticmethod
    def parameters(a) -> Terms:
        return part("", {"norm": norm.parameters(a)})


class Layer(LayerFields):
    """Attention and MLP, each behind a norm."""

    @staticmethod
    def parameters(a) -> Terms:
        return part("", layer.parameters(a))

    def build(self):
        from modelbudget.modules.layer import Layer

        return Layer(self)
