"""RWKV-4: a recurrent network that trains like a transformer."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Depth
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, norm, rwkv
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.norm import NormFields
from modelbudget.components.rwkv import RWKVFields


class RWKV(NormFields, RWKVFields, HeadFields, VocabularyFields):
    """Every layer is a time mixer and a channel mixer, each behind a norm."""

    has_cache: ClassVar[bool] = True

    n_layer: Depth = Field(description="layers, each one time mixer and one channel mixer")

    @staticmethod
    def parameters(a) -> Terms:
        """Peng et al. 2023, §3; with d_ff = 4D and untied, their 2VD + 13D²L + D(11L + 4)."""
        one_norm = norm.parameters(a)
        return {
            **part("embedding", {"token": embedding.token(a, a.d_model), "norm": one_norm}),
            **part("layer.time", rwkv.time(a), a.n_layer),
            **part("layer.channel", rwkv.channel(a), a.n_layer),
            **part("layer.norm", {"time": one_norm, "channel": one_norm}, a.n_layer),
            **part("norm", {"final": one_norm}),
            **part("", {"head": embedding.head(a, a.d_model)}),
        }

    @classmethod
    def _holds(cls, quantity, a, r):
        return int(quantity == "cache_bytes")

    @staticmethod
    def cache_bytes(a, r) -> Terms:
        return part("layer", rwkv.cached(a, r), a.n_layer)

    def build(self):
        from modelbudget.modules.rwkv import RWKVModel

        return RWKVModel(self)
