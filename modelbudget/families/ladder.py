"""The counting ladder: the parts of a transformer as models of their own, smallest first."""

from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, layer, norm
from modelbudget.components.attention.attention_fields import AttentionFields
from modelbudget.components.embedding import TokenFields
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.layer import LayerFields
from modelbudget.components.mixers import attention
from modelbudget.components.norm import NormFields
from modelbudget.families.smallest import SmallestLM


class Embedding(TokenFields):
    """A table: one row for each token of the vocabulary."""

    @staticmethod
    def parameters(a) -> Terms:
        return part("embedding", {"token": embedding.token(a)})

    def build(self):
        from modelbudget.modules import ladder

        return ladder.embedding(self)


class EmbeddingLM(SmallestLM):
    """The smallest language model: look a token up, score every token against it."""

    def build(self):
        from modelbudget.modules import ladder

        return ladder.embedding_lm(self)


class MLP(MLPFields):
    """Two linear layers with an activation between them."""

    @staticmethod
    def parameters(a) -> Terms:
        return part("mlp", mlp.parameters(a))

    def build(self):
        from modelbudget.modules import ladder

        return ladder.mlp(self)


class FeedForwardLM(SmallestLM, MLPFields):
    """A language model that reads one token: embedding, MLP, head."""

    has_mlp = True

    def build(self):
        from modelbudget.modules import ladder

        return ladder.feed_forward_lm(self)


class Attention(AttentionFields):
    """Four projections; the attention itself has no parameters."""

    @staticmethod
    def parameters(a) -> Terms:
        return part("attention", attention.parameters(a))

    def build(self):
        from modelbudget.modules import ladder

        return ladder.attention(self)


class Norm(NormFields):
    """A scale and a shift for each channel."""

    @staticmethod
    def parameters(a) -> Terms:
        return part("", {"norm": norm.parameters(a)})

    def build(self):
        from modelbudget.modules import ladder

        return ladder.norm(self)


class Layer(LayerFields):
    """Attention and MLP, each behind a norm."""

    @staticmethod
    def parameters(a) -> Terms:
        return part("", layer.parameters(a))

    def build(self):
        from modelbudget.modules.layer import Layer

        return Layer(self)
