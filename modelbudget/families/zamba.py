"""Zamba and Zamba2: state space models with transformer blocks that layers share."""

from itertools import cycle, islice
from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Count, Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_pattern import instances, pattern
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, norm, shared_block
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.language_model import in_order, make_layers, with_head
from modelbudget.components.mixers import mixers
from modelbudget.components.mixers.mamba2 import Mamba2Fields
from modelbudget.components.mixers.selective_scan import SelectiveScanFields
from modelbudget.components.norm import NormFields
from modelbudget.components.shared_block import SharedBlockFields
from modelbudget.families.state_space import assembled
from modelbudget.operations.part import make_part

WITH_BLOCK = "hybrid"
"""The word for a layer that uses a shared block."""
OfZamba, OfZamba2 = pattern("selective_scan", WITH_BLOCK), pattern("mamba2", WITH_BLOCK)


class _WithSharedBlocks(SharedBlockFields, NormFields, HeadFields, VocabularyFields):
    """Every layer is a norm and a state space mixer, which in some reads a shared block too."""

    switches_of_run: ClassVar[tuple[str, ...]] = ("state_dtype",)
    has_cache: ClassVar[bool] = True
    mixer: ClassVar[str]
    """The name of the mixer."""

    n_layer: Depth

    @classmethod
    def parameters(cls, a: Fields) -> Terms:
        """Glorioso et al. 2024, fig. 2: arXiv 2405.16712 (Zamba), arXiv 2411.15242 (Zamba2)."""
        n_use = instances(a.mixers, a.n_layer).get(WITH_BLOCK, 0)
        return {
            **assembled(a, mixers()[cls.mixer].parameters(a)),
            **part("block", shared_block.parameters(a), shared_block.n_block(a, n_use)),
            **part("layer.use", shared_block.use_parameters(a), n_use),
        }

    @classmethod
    def model_program(cls, a: Fields, r: Run):
        """Tokens (batch, length) to logits (batch, length, n_vocab)."""
        names = list(islice(cycle(a.mixers.split()), a.n_layer))
        n_block = min(a.n_shared_block, names.count(WITH_BLOCK))
        token = make_part("embedding.token", embedding.table_program, embedding.rows(a), a.d_model)
        blocks = [make_part("block", shared_block.program, a, r) for _ in range(n_block)]
        layers = make_layers(
            a.n_layer, lambda i: make_part("layer", _layer, a, r, cls.mixer, names[i])
        )
        final_norm = norm.make("norm.final", a, r)
        head = make_part("head", embedding.head_program, a, r, token.weight)

        def stream(tokens):
            x = embedded = token(tokens)
            in_turn = cycle(blocks)
            for name, layer in zip(names, in_order(layers), strict=True):
                x = layer(x, embedded, next(in_turn) if name == WITH_BLOCK else None)
            return x, embedded

        return with_head(stream, final_norm, head)

    def build(self):
        from modelbudget.modules.mixers import mixers
        from modelbudget.modules.zamba import ZambaModel

        return ZambaModel(self, mixers()[self.mixer].make)


class Zamba(SelectiveScanFields, _WithSharedBlocks):
    """Mamba, with heads, and shared transformer blocks."""

    mixer: ClassVar[str] = "selective_scan"

    mixers: OfZamba = "selective_scan"
    d_scan: Count = Field()
    d_scan_state: Count = 16
    d_scan_step: Count = Field()
    d_scan_convolution: Count = 4
    scan_norm: bool = False


class Zamba2(Mamba2Fields, _WithSharedBlocks):
    """Mamba-2 with shared transformer blocks."""

    mixer: ClassVar[str] = "mamba2"

    mixers: OfZamba2 = "mamba2"
    n_mamba_head: Count = Field()
    d_mamba_head: Count = Field()
    n_mamba_group: Count = 1
    d_mamba_state: Count = 64
    d_mamba_convolution: Count = 4
    n_ctx: Count = 4096


def _layer(a: Fields, r: Run, mixer: str, name: str):
    norm_, mix = norm.make("norm", a, r), make_part("mixer", mixers()[mixer].program, a, r)
    use = make_part("use", shared_block.use_program, a, r) if name == WITH_BLOCK else None

    def forward(x, embedded, block):
        y = x if use is None else x + use(x, embedded, block)
        return x + mix(norm_(y))

    return forward
