"""Zamba and Zamba2: state space models with transformer blocks that layers share."""

from collections.abc import Callable
from functools import partial
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
from modelbudget.operations.elementwise import add
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

    n_layer: Depth = Field(description="layers, each one norm and one scan")

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
    def program(cls) -> Callable:
        return partial(_program, mixer=cls.mixer)

    def build(self):
        from modelbudget.modules.mixers import mixers
        from modelbudget.modules.zamba import ZambaModel

        return ZambaModel(self, mixers()[self.mixer].make)


class Zamba(SelectiveScanFields, _WithSharedBlocks):
    """Mamba, with heads, and shared transformer blocks."""

    mixer: ClassVar[str] = "selective_scan"

    mixers: OfZamba = Field(  # pyright: ignore[reportInvalidTypeForm]
        "selective_scan",
        description="layers, repeated: selective_scan, or hybrid, which reads a shared block too",
    )
    d_scan: Count = Field(description="channels of the recurrence")
    d_scan_state: Count = Field(16, description="states of each channel")
    d_scan_step: Count = Field(description="rank of the map from a token to its steps")
    d_scan_convolution: Count = Field(4, description="tokens that the convolution spans")
    scan_norm: bool = Field(False, description="norms of step, write and read weights")

    derived: ClassVar[dict[str, str]] = {
        "d_scan": "2 * d_model",
        "d_scan_step": "ceil(d_model / 16)",
    }


class Zamba2(Mamba2Fields, _WithSharedBlocks):
    """Mamba-2 with shared transformer blocks."""

    mixer: ClassVar[str] = "mamba2"

    mixers: OfZamba2 = Field(  # pyright: ignore[reportInvalidTypeForm]
        "mamba2",
        description="layers, repeated: mamba2, or hybrid, which reads a shared block too",
    )
    n_mamba_head: Count = Field(description="heads of Mamba-2, each with one decay")
    d_mamba_head: Count = Field(description="channels of one head of Mamba-2")
    n_mamba_group: Count = Field(1, description="groups of heads that share B and C")
    d_mamba_state: Count = Field(64, description="states of each channel")
    d_mamba_convolution: Count = Field(4, description="tokens that the convolution spans")

    derived: ClassVar[dict[str, str]] = {"d_mamba_head": "2 * d_model / n_mamba_head"}


def _program(a: Fields, r: Run, mixer: str):
    """Tokens (batch, length) to logits (batch, length, n_vocab)."""
    names = list(islice(cycle(a.mixers.split()), a.n_layer))
    n_block = min(a.n_shared_block, names.count(WITH_BLOCK))
    token = make_part("embedding.token", embedding.table_program, embedding.rows(a), a.d_model)
    blocks = [make_part("block", shared_block.program, a, r) for _ in range(n_block)]
    layers = make_layers(a.n_layer, lambda i: make_part("layer", _layer, a, r, mixer, names[i]))
    final_norm = norm.make("norm.final", a, r)
    head = make_part("head", embedding.head_program, a, r, token.weight)

    def stream(tokens):
        x = embedded = token(tokens)
        in_turn = cycle(blocks)
        for name, layer in zip(names, in_order(layers), strict=True):
            x = layer(x, embedded, next(in_turn) if name == WITH_BLOCK else None)
        return x, embedded

    return with_head(stream, final_norm, head)


def _layer(a: Fields, r: Run, mixer: str, name: str):
    norm_, mix = norm.make("norm", a, r), make_part("mixer", mixers()[mixer].program, a, r)
    use = make_part("use", shared_block.use_program, a, r) if name == WITH_BLOCK else None

    def forward(x, embedded, block):
        y = x if use is None else add(x, use(x, embedded, block))
        return add(x, mix(norm_(y)))

    return forward
