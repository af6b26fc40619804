"""State space language models: Mamba and Mamba-2."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Depth
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, mamba, mamba2, norm
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.mamba import SelectiveScanFields
from modelbudget.components.mamba2 import StateSpaceDualFields
from modelbudget.components.norm import NormFields


class SelectiveScan(NormFields, SelectiveScanFields, HeadFields, VocabularyFields):
    """Mamba: every layer is a norm and a selective scan; there is no attention and no MLP."""

    has_cache: ClassVar[bool] = True

    n_layer: Depth = Field(description="layers, each one norm and one scan")

    @staticmethod
    def parameters(a) -> Terms:
        """Gu & Dao 2023, §3.4."""
        return _parameters(a, mamba.parameters(a))

    @classmethod
    def _holds(cls, quantity, a, r):
        return int(quantity == "cache_bytes")

    @staticmethod
    def cache_bytes(a, r) -> Terms:
        return part("layer.mixer", mamba.cached(a, r), a.n_layer)

    def build(self):
        from modelbudget.modules.state_space import SelectiveScanModel

        return SelectiveScanModel(self)


class StateSpaceDual(NormFields, StateSpaceDualFields, HeadFields, VocabularyFields):
    """Mamba-2: as Mamba, with heads."""

    has_cache: ClassVar[bool] = True

    n_layer: Depth = Field(description="layers, each one norm and one scan")

    @staticmethod
    def parameters(a) -> Terms:
        """Dao & Gu 2024, §7."""
        return _parameters(a, mamba2.parameters(a))

    @classmethod
    def _holds(cls, quantity, a, r):
        return int(quantity == "cache_bytes")

    @staticmethod
    def cache_bytes(a, r) -> Terms:
        return part("layer.mixer", mamba2.cached(a, r), a.n_layer)

    def build(self):
        from modelbudget.modules.state_space import StateSpaceDualModel

        return StateSpaceDualModel(self)


def _parameters(a, mixer: dict) -> Terms:
    one_norm = norm.parameters(a)
    return {
        **part("embedding", {"token": embedding.token(a, a.d_model)}),
        **part("layer.mixer", mixer, a.n_layer),
        **part("layer", {"norm": one_norm}, a.n_layer),
        **part("norm", {"final": one_norm}),
        **part("", {"head": embedding.head(a, a.d_model)}),
    }
