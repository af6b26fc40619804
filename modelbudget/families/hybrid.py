"""The recurrent–transformer hybrid: small per-channel RNNs feed attention, then an MLP."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Depth
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import attention, channel_rnn, embedding, mlp, norm
from modelbudget.components.attention import AttentionFields
from modelbudget.components.channel_rnn import RecurrentFields
from modelbudget.components.embedding import HeadFields, TokenFields
from modelbudget.components.mlp import MLPFields


class Hybrid(HeadFields, MLPFields, RecurrentFields, AttentionFields, TokenFields):
    """A language model without positions: the recurrent cells know the order.

    Attention has two norms, one before the cells and one between the cells and its projections.
    """

    has_cache: ClassVar[bool] = True

    n_layer: Depth = Field(description="layers, each recurrent cells, attention and MLP")

    @staticmethod
    def parameters(a) -> Terms:
        """The sum of the parts; there is no final norm."""
        norms = ("recurrent", "attention", "mlp")
        return {
            **part("embedding", {"token": embedding.token(a)}),
            **part("layer.recurrent", channel_rnn.parameters(a), a.n_layer),
            **part("layer.attention", attention.parameters(a), a.n_layer),
            **part("layer.mlp", mlp.parameters(a), a.n_layer),
            **part("layer.norm", dict.fromkeys(norms, norm.parameters(a)), a.n_layer),
            **part("", {"head": embedding.head(a)}),
        }

    @staticmethod
    def covered(quantity, a, r):
        return int(quantity == "cache_bytes")

    @staticmethod
    def cache_bytes(a, r) -> Terms:
        """States of the cells, and keys and values of all tokens."""
        held = {"recurrent": channel_rnn.cached(a, r), "attention": attention.cached(a, r)}
        return part("layer", held, a.n_layer)

    def build(self):
        from modelbudget.modules.hybrid import HybridModel

        return HybridModel(self)
