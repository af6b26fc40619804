"""RWKV-5 (Eagle), RWKV-6 (Finch) and RWKV-7 (Goose)."""

from types import ModuleType
from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import one_token, tokens
from modelbudget.architecture.terms import Terms, merged, part
from modelbudget.components import embedding, norm, rwkv5, rwkv6, rwkv7, rwkv_heads
from modelbudget.components.contract import Values, doubled
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.norm import NormFields
from modelbudget.components.rwkv5 import RWKV5Fields
from modelbudget.components.rwkv6 import RWKV6Fields
from modelbudget.components.rwkv7 import RWKV7Fields
from modelbudget.families.rwkv import assembled


class _MatrixRWKV(NormFields, HeadFields, VocabularyFields):
    """Every layer is a time mixer and a channel mixer, each behind a norm."""

    has_cache: ClassVar[bool] = True
    mixers: ClassVar[ModuleType]
    """The component with both mixers."""

    n_layer: Depth = Field(description="layers, each one time mixer and one channel mixer")

    @classmethod
    def _holds(cls, quantity: str, a: Fields, r: Run):
        """1 but where a single token leaves decays without a gradient."""
        if quantity in ("cache_bytes", "flops_decode"):
            return 1
        return rwkv_heads.has_two_tokens(r)

    @classmethod
    def parameters(cls, a: Fields) -> Terms:
        """RWKV-5 and 6: Peng et al. 2024 (arXiv 2404.05892), §4."""
        ends = {"embedding.token": embedding.token(a), "head": embedding.head(a)}
        mixers = cls.mixers.time(a), cls.mixers.channel(a)
        return assembled(a, ends, *mixers, norm.parameters(a))

    @classmethod
    def trained_tensors(cls, a: Fields) -> Terms:
        ends = {"embedding.token": 1, "head": 1 - a.tied + a.head_bias}
        mixers = cls.mixers.time_tensors(a), cls.mixers.channel_tensors
        return assembled(a, ends, *mixers, norm.n_tensors(a))

    @classmethod
    def activation_bytes(cls, a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass."""
        ends = embedding.saved_by_ends(a, r, a.d_model)
        mixers = cls.mixers.time_saved(a, r), cls.mixers.channel_saved(a, r)
        return assembled(a, ends, *mixers, norm.saved(a, r))

    @classmethod
    def flops_forward(cls, a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        ends = {"head": 2 * tokens(r) * embedding.token(a)}
        return assembled(a, ends, cls.mixers.time_flops(a, r), cls.mixers.channel_flops(a, r))

    @classmethod
    def flops_backward(cls, a: Fields, r: Run) -> Terms:
        """FLOPs of the gradients."""
        ends = {"head": 4 * tokens(r) * embedding.token(a)}
        channel = doubled(cls.mixers.channel_flops(a, r))
        return assembled(a, ends, cls.mixers.time_flops_backward(a, r), channel)

    @classmethod
    def flops_decode(cls, a: Fields, r: Run) -> Terms:
        """FLOPs of one more token for each sequence, whatever came before."""
        return cls.flops_forward(a, one_token(r))

    @staticmethod
    def cache_bytes(a: Fields, r: Run) -> Terms:
        return part("layer", rwkv_heads.cached(a, r), a.n_layer)

    def build(self):
        from modelbudget.modules.rwkv5_to_7 import MatrixRWKVModel

        return MatrixRWKVModel(self, type(self).__name__)


class RWKV5(RWKV5Fields, _MatrixRWKV):
    """RWKV-5 (Eagle)."""

    mixers: ClassVar[ModuleType] = rwkv5


class RWKV6(RWKV6Fields, _MatrixRWKV):
    """RWKV-6 (Finch)."""

    mixers: ClassVar[ModuleType] = rwkv6


class RWKV7(RWKV7Fields, _MatrixRWKV):
    """RWKV-7 (Goose): all layers but the first read the values of the first."""

    mixers: ClassVar[ModuleType] = rwkv7

    @classmethod
    def _holds(cls, quantity: str, a: Fields, r: Run):
        """1: the state decays before the first token is read."""
        return 1

    @classmethod
    def parameters(cls, a: Fields) -> Terms:
        """Peng et al. 2025 (arXiv 2503.14456), §4."""
        return super().parameters(a) | _after_first(a, rwkv7.value_mix(a))

    @classmethod
    def trained_tensors(cls, a: Fields) -> Terms:
        return super().trained_tensors(a) | _after_first(a, rwkv7.value_mix_tensors(a))

    @classmethod
    def activation_bytes(cls, a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass."""
        own = _after_first(a, rwkv7.value_mix_saved(a, r))
        return merged(super().activation_bytes(a, r), own)

    @classmethod
    def flops_forward(cls, a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        return super().flops_forward(a, r) | _after_first(a, rwkv7.value_mix_flops(a, r))

    @classmethod
    def flops_backward(cls, a: Fields, r: Run) -> Terms:
        """FLOPs of the gradients."""
        own = _after_first(a, doubled(rwkv7.value_mix_flops(a, r)))
        return super().flops_backward(a, r) | own


def _after_first(a: Fields, of_layer: Values) -> Terms:
    """Return the terms of all layers but the first."""
    return part("layer.time", of_layer, a.n_layer - 1)
