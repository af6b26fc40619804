"""RWKV-4: a recurrent network that trains like a transformer."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import tokens
from modelbudget.architecture.terms import Terms, part, scaled
from modelbudget.components import embedding, norm, rwkv_mixers
from modelbudget.components.contract import Values
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.norm import NormFields
from modelbudget.components.rwkv_mixers import RWKVFields


class RWKV(NormFields, RWKVFields, HeadFields, VocabularyFields):
    """Every layer is a time mixer and a channel mixer, each behind a norm."""

    has_cache: ClassVar[bool] = True

    n_layer: Depth = Field(description="layers, each one time mixer and one channel mixer")

    @classmethod
    def _holds(cls, quantity: str, a: Fields, r: Run):
        """1 but where a single token leaves the decay without a gradient."""
        return 1 if quantity == "cache_bytes" else positive(r.length - 1)

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """Peng et al. 2023, §3; with d_ff = 4D and untied, their 2VD + 13D²L + D(11L + 4)."""
        ends = {"embedding.token": embedding.token(a), "head": embedding.head(a)}
        return assembled(a, ends, rwkv_mixers.time(a), rwkv_mixers.channel(a), norm.parameters(a))

    @staticmethod
    def trained_tensors(a: Fields) -> Terms:
        ends = {"embedding.token": 1, "head": 1 - a.tied + a.head_bias}
        time, channel = (
            dict.fromkeys(mixer(a), 1) for mixer in (rwkv_mixers.time, rwkv_mixers.channel)
        )
        return assembled(a, ends, time, channel, norm.n_tensors(a))

    @staticmethod
    def activation_bytes(a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass."""
        ends = embedding.saved_by_ends(a, r, a.d_model)
        mixers = rwkv_mixers.time_saved(a, r), rwkv_mixers.channel_saved(a, r)
        return assembled(a, ends, *mixers, norm.saved(a, r))

    @staticmethod
    def flops_forward(a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        ends = {"head": 2 * tokens(r) * embedding.token(a)}
        return assembled(a, ends, rwkv_mixers.time_flops(a, r), rwkv_mixers.channel_flops(a, r))

    @classmethod
    def flops_backward(cls, a: Fields, r: Run) -> Terms:
        """Each product twice, for the gradients of both its factors."""
        return scaled(cls.flops_forward(a, r), 2)

    @staticmethod
    def cache_bytes(a, r) -> Terms:
        return part("layer", rwkv_mixers.cached(a, r), a.n_layer)

    def build(self):
        from modelbudget.modules.rwkv import RWKVModel

        return RWKVModel(self)


def assembled(a: Fields, ends: Values, time: Values, channel: Values, one_norm=0) -> Terms:
    """Combine the values of both mixers of a layer with those of embedding and head."""
    return {
        **part("", ends),
        **part("embedding", {"norm": one_norm}),
        **part("layer.time", time, a.n_layer),
        **part("layer.channel", channel, a.n_layer),
        **part("layer.norm", {"time": one_norm, "channel": one_norm}, a.n_layer),
        **part("norm", {"final": one_norm}),
    }
