"""RWKV-5 (Eagle), RWKV-6 (Finch) and RWKV-7 (Goose)."""

from types import ModuleType
from typing import ClassVar

from modelbudget.architecture.base import Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_adapter import OF_FROZEN
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import norm, rwkv5, rwkv6, rwkv7
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.norm import NormFields
from modelbudget.components.rwkv5 import RWKV5Fields
from modelbudget.components.rwkv6 import RWKV6Fields
from modelbudget.components.rwkv7 import RWKV7Fields
from modelbudget.families.rwkv import assembled, program_of
from modelbudget.operations.elementwise import add
from modelbudget.operations.part import make_part


class _MatrixRWKV(NormFields, HeadFields, VocabularyFields):
    """Every layer is a time mixer and a channel mixer, each behind a norm."""

    switches_of_run: ClassVar[tuple[str, ...]] = OF_FROZEN
    has_cache: ClassVar[bool] = True
    LOOPS_OVER_TOKENS: ClassVar[bool] = True
    mixers: ClassVar[ModuleType]
    """The component with both mixers."""

    n_layer: Depth

    @classmethod
    def parameters(cls, a: Fields) -> Terms:
        """RWKV-5 and 6: Peng et al. 2024 (arXiv 2404.05892), §4."""
        return assembled(a, cls.mixers.time(a), cls.mixers.channel(a))

    @classmethod
    def model_program(cls, a: Fields, r: Run):
        return program_of(a, r, cls._layer)

    @classmethod
    def _layer(cls, a: Fields, r: Run, number: int):
        time = make_part("time", cls._time, a, r, number)
        channel = make_part("channel", cls.mixers.channel_program, a, r)
        time_norm, channel_norm = norm.make("norm.time", a, r), norm.make("norm.channel", a, r)

        def forward(x, values):
            normed = time_norm(x)  # live to the end, as what the time mixer changes
            change, values = time(normed, values)
            x = add(x, change)
            return add(x, channel(channel_norm(x))), values

        return forward

    @classmethod
    def _time(cls, a: Fields, r: Run, number: int):
        """Make the time mixer, which returns its result and the values that later ones read."""
        mix = cls.mixers.time_program(a, r)
        return lambda x, values: (mix(x), values)

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
