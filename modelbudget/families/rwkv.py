"""RWKV-4 to RWKV-7 (Eagle, Finch, Goose): recurrent networks that train like a transformer."""

from types import ModuleType
from typing import ClassVar

from modelbudget.architecture.base import Architecture, Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_adapter import OF_FROZEN
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, norm, rwkv5, rwkv6, rwkv7, rwkv_mixers
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.language_model import in_order, make_layers, with_head
from modelbudget.components.norm import NormFields
from modelbudget.components.rwkv5 import RWKV5Fields
from modelbudget.components.rwkv6 import RWKV6Fields
from modelbudget.components.rwkv7 import RWKV7Fields
from modelbudget.components.rwkv_mixers import RWKVFields
from modelbudget.operations.part import make_part


class _TimeAndChannel(Architecture):
    """Every layer is a time mixer and a channel mixer, each behind a norm."""

    switches_of_run: ClassVar[tuple[str, ...]] = OF_FROZEN
    has_cache: ClassVar[bool] = True
    LOOPS_OVER_TOKENS: ClassVar[bool] = True
    mixers: ClassVar[ModuleType]
    """The component with both mixers."""

    n_layer: Depth

    @classmethod
    def parameters(cls, a: Fields) -> Terms:
        """RWKV-4: Peng et al. 2023, §3; with d_ff = 4D and untied, their 2VD + 13D²L + D(11L + 4).

        RWKV-5 and 6: Peng et al. 2024 (arXiv 2404.05892), §4.
        """
        one_norm = norm.parameters(a)
        return {
            **part("", {"embedding.token": embedding.token(a), "head": embedding.head(a)}),
            **part("embedding", {"norm": one_norm}),
            **part("layer.time", cls.mixers.time(a), a.n_layer),
            **part("layer.channel", cls.mixers.channel(a), a.n_layer),
            **part("layer.norm", {"time": one_norm, "channel": one_norm}, a.n_layer),
            **part("norm", {"final": one_norm}),
        }

    @classmethod
    def model_program(cls, a: Fields, r: Run):
        """Tokens (batch, length) to logits (batch, length, n_vocab)."""
        token = make_part("embedding.token", embedding.token_program, a, r)
        embedding_norm = norm.make("embedding.norm", a, r)
        layers = make_layers(a.n_layer, lambda number: make_part("layer", cls._layer, a, r, number))
        final_norm = norm.make("norm.final", a, r)
        head = make_part("head", embedding.head_program, a, r, token.weight)

        def stream(tokens):
            x, values = embedding_norm(token(tokens)), None
            for layer in in_order(layers):
                x, values = layer(x, values)
            return x, values

        return with_head(stream, final_norm, head)

    @classmethod
    def _layer(cls, a: Fields, r: Run, number: int):
        """Return a layer, from states and values to states and the values that later ones read."""
        time = make_part("time", cls._time, a, r, number)
        channel = make_part("channel", cls.mixers.channel_program, a, r)
        time_norm, channel_norm = norm.make("norm.time", a, r), norm.make("norm.channel", a, r)

        def forward(x, values):
            normed = time_norm(x)  # live to the end, as what the time mixer changes
            change, values = time(normed, values)
            x = x + change
            return x + channel(channel_norm(x)), values

        return forward

    @classmethod
    def _time(cls, a: Fields, r: Run, number: int):
        """Make the time mixer, which returns its result and the values that later ones read."""
        mix = cls.mixers.time_program(a, r)
        return lambda x, values: (mix(x), values)


class RWKV(_TimeAndChannel, NormFields, RWKVFields, HeadFields, VocabularyFields):
    """RWKV-4: every layer is a time mixer and a channel mixer, each behind a norm."""

    mixers: ClassVar[ModuleType] = rwkv_mixers

    @classmethod
    def _layer(cls, a: Fields, r: Run, number: int):
        time = make_part("time", rwkv_mixers.time_program, a, r)
        channel = make_part("channel", rwkv_mixers.channel_program, a, r)
        time_norm, channel_norm = norm.make("norm.time", a, r), norm.make("norm.channel", a, r)

        def forward(x, values):
            x = x + time(time_norm(x))
            return x + channel(channel_norm(x)), values

        return forward

    def build(self):
        from modelbudget.modules.rwkv import rwkv_model

        return rwkv_model(self)


class _MatrixRWKV(_TimeAndChannel, NormFields, HeadFields, VocabularyFields):
    """A time mixer has a matrix of states for each head."""

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
    def parameters(cls, a: Fields) -> Terms:
        """Peng et al. 2025 (arXiv 2503.14456), §4."""
        after_first = part("layer.time", rwkv7.value_mix(a), a.n_layer - 1)
        return super().parameters(a) | after_first

    @classmethod
    def _time(cls, a: Fields, r: Run, number: int):
        return rwkv7.time_program(a, r, number == 0)
