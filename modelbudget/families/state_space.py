"""State space language models: Mamba and Mamba-2."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import tokens
from modelbudget.architecture.terms import Terms, part, scaled
from modelbudget.components import embedding, mamba2_block, mamba_block, norm, state_space_program
from modelbudget.components.contract import Values
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.mamba2_block import StateSpaceDualFields
from modelbudget.components.mamba_block import SelectiveScanFields
from modelbudget.components.norm import NormFields


class _StateSpace(NormFields, HeadFields, VocabularyFields):
    """Every layer is a norm and a mixer; there is no attention and no MLP."""

    switches_of_run: ClassVar[tuple[str, ...]] = ("state_dtype",)
    has_cache: ClassVar[bool] = True
    mixer: ClassVar[ModuleType]
    """The component."""

    n_layer: Depth = Field(description="layers, each one norm and one scan")

    @classmethod
    def parameters(cls, a: Fields) -> Terms:
        """Mamba: Gu & Dao 2023, §3.4; Mamba-2: Dao & Gu 2024, §7."""
        ends = {"embedding.token": embedding.token(a), "head": embedding.head(a)}
        return assembled(a, ends, cls.mixer.parameters(a), norm.parameters(a))

    @classmethod
    def trained_tensors(cls, a: Fields) -> Terms:
        ends = {"embedding.token": 1, "head": 1 - a.tied + a.head_bias}
        return assembled(a, ends, cls.mixer.n_tensors(a), norm.n_tensors(a))

    @classmethod
    def activation_bytes(cls, a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass."""
        ends = embedding.saved_by_ends(a, r, a.d_model)
        return assembled(a, ends, cls.mixer.saved(a, r), norm.saved(a, r))

    @classmethod
    def flops_forward(cls, a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products and convolutions, two for a multiplication and a sum."""
        return assembled(a, {"head": 2 * tokens(r) * embedding.token(a)}, cls.mixer.flops(a, r))

    @classmethod
    def flops_backward(cls, a: Fields, r: Run) -> Terms:
        """Each product twice, for the gradients of both its factors."""
        return scaled(cls.flops_forward(a, r), 2)

    @classmethod
    def cache_bytes(cls, a: Fields, r: Run) -> Terms:
        return part("layer.mixer", cls.mixer.cached(a, r), a.n_layer)

    @classmethod
    def program(cls) -> Callable:
        return partial(state_space_program.program, mixer=cls.mixer)


class SelectiveScan(SelectiveScanFields, _StateSpace):
    """Mamba."""

    mixer: ClassVar[ModuleType] = mamba_block

    def build(self):
        from modelbudget.modules.state_space import SelectiveScanModel

        return SelectiveScanModel(self)


class StateSpaceDual(StateSpaceDualFields, _StateSpace):
    """Mamba-2: as Mamba, with heads."""

    mixer: ClassVar[ModuleType] = mamba2_block

    def build(self):
        from modelbudget.modules.state_space import StateSpaceDualModel

        return StateSpaceDualModel(self)


def assembled(a: Fields, ends: Values, mixer: Values, one_norm=0) -> Terms:
    """Combine the values of the mixer and the norm of a layer with those of embedding and head."""
    return {
        **part("", ends),
        **part("layer.mixer", mixer, a.n_layer),
        **part("layer", {"norm": one_norm}, a.n_layer),
        **part("norm", {"final": one_norm}),
    }
