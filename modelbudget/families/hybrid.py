"""The recurrent–transformer hybrid: small per-channel RNNs feed attention, then an MLP."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Count, Depth
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, norm
from modelbudget.components.embedding import HeadFields, TokenFields
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.mixers import attention, channel_rnn
from modelbudget.components.mixers.attention import AttentionFields
from modelbudget.components.mixers.channel_rnn import ChannelRNNFields


class Hybrid(HeadFields, MLPFields, ChannelRNNFields, AttentionFields, TokenFields):
    """A language model without position embedding: the recurrent cells encode the order.

    Attention has two norms, one before the cells and one between the cells and its projections.
    """

    has_cache: ClassVar[bool] = True

    n_layer: Depth = Field(description="layers, each recurrent cells, attention and MLP")
    d_hidden: Count = Field(description="hidden size of each cell")

    @staticmethod
    def parameters(a) -> Terms:
        """Count the parameters of each component; there is no final norm."""
        norms = ("channel_rnn", "attention", "mlp")
        return {
            **part("embedding", {"token": embedding.token(a)}),
            **part("layer.channel_rnn", channel_rnn.parameters(a), a.n_layer),
            **part("layer.attention", attention.parameters(a), a.n_layer),
            **part("layer.mlp", mlp.parameters(a), a.n_layer),
            **part("layer.norm", dict.fromkeys(norms, norm.parameters(a)), a.n_layer),
            **part("", {"head": embedding.head(a)}),
        }

    @classmethod
    def _holds(cls, quantity, a, r):
        return int(quantity == "cache_bytes")

    @staticmethod
    def cache_bytes(a, r) -> Terms:
        """States of the cells, and keys and values of all tokens."""
        return {
            **part("layer.channel_rnn", channel_rnn.cache(a, r), a.n_layer),
            **part("layer.attention", attention.cache(a, r), a.n_layer),
        }

    def build(self):
        from modelbudget.modules.hybrid import HybridModel

        return HybridModel(self)
