"""RWKV-4: a recurrent network that trains like a transformer."""

from pydantic import Field

from modelbudget.architecture import Count
from modelbudget.components import rwkv, sized_norm, words
from modelbudget.components.norm import NormFields
from modelbudget.components.rwkv import RWKVFields
from modelbudget.components.words import WordFields
from modelbudget.terms import Terms, part


class RWKV(NormFields, RWKVFields, WordFields):
    """Every layer is a time mixer and a channel mixer, each behind a norm."""

    n_layer: Count = Field(description="layers, each one time mixer and one channel mixer")

    @staticmethod
    def parameters(a) -> Terms:
        """Peng et al. 2023, §3; with d_ff = 4D and untied, their 2VD + 13D²L + D(11L + 4)."""
        norm = sized_norm.parameters(a, a.d_model)
        return {
            **part("embedding", {"token": words.token(a, a.d_model), "norm": norm}),
            **part("layer.time", rwkv.time(a), a.n_layer),
            **part("layer.channel", rwkv.channel(a), a.n_layer),
            **part("layer.norm", {"time": norm, "channel": norm}, a.n_layer),
            **part("norm", {"final": norm}),
            **part("", {"head": words.head(a, a.d_model)}),
        }

    def build(self):
        from modelbudget.modules.rwkv import RWKVModel

        return RWKVModel(self)
