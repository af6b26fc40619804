"""Zamba and Zamba2: state space models with transformer blocks that layers share."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Count, Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_pattern import instances, pattern
from modelbudget.architecture.run_values import one_token, tokens
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import contract, embedding, norm, shared_block
from modelbudget.components.contract import ALONE, Part, Values, doubled
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.mixers import mixers
from modelbudget.components.mixers.mamba2 import Mamba2Fields
from modelbudget.components.mixers.selective_scan import SelectiveScanFields
from modelbudget.components.norm import NormFields
from modelbudget.components.shared_block import SharedBlockFields
from modelbudget.families.state_space import assembled
from modelbudget.memory.parameter_tensors import counts

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
    def _part(cls) -> Part:
        return mixers()[cls.mixer]

    @classmethod
    def _holds(cls, quantity: str, a: Fields, r: Run):
        """1 where the mixer has the formula, else 0."""
        return contract.has_formula(cls._part(), quantity, a, r)

    @classmethod
    def parameters(cls, a: Fields) -> Terms:
        """Glorioso et al. 2024, fig. 2: arXiv 2405.16712 (Zamba), arXiv 2411.15242 (Zamba2)."""
        ends = {"embedding.token": embedding.token(a), "head": embedding.head(a)}
        block, use = shared_block.parameters(a), shared_block.use_parameters(a)
        held = _held(a, block, use, shared_block.n_block(a, _n_use(a)))
        return assembled(a, ends, cls._part().parameters(a), norm.parameters(a)) | held

    @classmethod
    def trained_tensors(cls, a: Fields) -> Terms:
        ends = {"embedding.token": 1, "head": 1 - a.tied + a.head_bias}
        block, use = shared_block.n_tensors(a), shared_block.use_n_tensors(a)
        held = _held(a, block, use, shared_block.n_block(a, _n_use(a)))
        return assembled(a, ends, counts(cls._part().tensors(a)), norm.n_tensors(a)) | held

    @classmethod
    def activation_bytes(cls, a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass."""
        ends = embedding.saved_by_ends(a, r, a.d_model)
        held = _held(a, shared_block.saved(a, r), shared_block.use_saved(a, r))
        return assembled(a, ends, cls._part().saved(a, r, ALONE), norm.saved(a, r)) | held

    @classmethod
    def flops_forward(cls, a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products and convolutions, two for a multiplication and a sum."""
        ends = {"head": 2 * tokens(r) * embedding.token(a)}
        held = _held(a, shared_block.flops(a, r), shared_block.use_flops(a, r))
        return assembled(a, ends, cls._part().flops(a, r)) | held

    @classmethod
    def flops_backward(cls, a: Fields, r: Run) -> Terms:
        """FLOPs of the gradients."""
        ends = {"head": 4 * tokens(r) * embedding.token(a)}
        block, use = doubled(shared_block.flops(a, r)), shared_block.use_flops_backward(a, r)
        return assembled(a, ends, cls._part().flops_backward(a, r)) | _held(a, block, use)

    @classmethod
    def flops_decode(cls, a: Fields, r: Run) -> Terms:
        """FLOPs of one more token for each sequence, after `length` tokens."""
        one = one_token(r)
        ends = {"head": 2 * tokens(one) * embedding.token(a)}
        held = _held(a, shared_block.flops(a, one), shared_block.use_flops_decode(a, r))
        return assembled(a, ends, cls._part().flops_decode(a, r)) | held

    @classmethod
    def cache_bytes(cls, a: Fields, r: Run) -> Terms:
        """States of the mixers, and keys and values of each use of a shared block."""
        states = part("layer.mixer", cls._part().cache(a, r), a.n_layer)
        return states | part("layer.use", shared_block.cache(a, r), _n_use(a))

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


def _n_use(a: Fields):
    """Count the uses of shared blocks."""
    return instances(a.mixers, a.n_layer).get(WITH_BLOCK, 0)


def _held(a: Fields, block: Values, use: Values, n_block=None) -> Terms:
    """Combine the values of shared blocks, each `n_block` times (once a use), and of their uses."""
    n_use = _n_use(a)
    n_block = n_use if n_block is None else n_block
    return part("block", block, n_block) | part("layer.use", use, n_use)
