"""State space language models: Mamba and Mamba-2."""

from types import ModuleType
from typing import ClassVar

from modelbudget.architecture.base import Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_adapter import OF_FROZEN
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, mamba2_block, mamba_block, norm
from modelbudget.components.contract import Values
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.language_model import in_a_row, make_layers
from modelbudget.components.mamba2_block import StateSpaceDualFields
from modelbudget.components.mamba_block import MambaFields
from modelbudget.components.norm import NormFields
from modelbudget.operations.part import make_part


class _StateSpace(NormFields, HeadFields, VocabularyFields):
    """Every layer is a norm and a mixer; there is no attention and no MLP."""

    switches_of_run: ClassVar[tuple[str, ...]] = ("state_dtype", *OF_FROZEN)
    has_cache: ClassVar[bool] = True
    LOOPS_OVER_TOKENS: ClassVar[bool] = True
    mixer: ClassVar[ModuleType]
    """The component."""

    n_layer: Depth

    @classmethod
    def parameters(cls, a: Fields) -> Terms:
        """Mamba: Gu & Dao 2023, §3.4; Mamba-2: Dao & Gu 2024, §7."""
        return assembled(a, cls.mixer.parameters(a))

    @classmethod
    def model_program(cls, a: Fields, r: Run):
        """Tokens (batch, length) to logits (batch, length, n_vocab)."""
        token = make_part("embedding.token", embedding.token_program, a, r)
        layers = make_layers(a.n_layer, lambda _: make_part("layer", _layer, a, r, cls.mixer))
        final_norm = norm.make("norm.final", a, r)
        head = make_part("head", embedding.head_program, a, r, token.weight)
        return in_a_row(token, layers, head, final_norm)


class SelectiveScan(MambaFields, _StateSpace):
    """Mamba."""

    mixer: ClassVar[ModuleType] = mamba_block

    def build(self):
        from modelbudget.modules.mamba_block import SelectiveScanMixer
        from modelbudget.modules.state_space import state_space_model

        return state_space_model(self, SelectiveScanMixer)


class StateSpaceDual(StateSpaceDualFields, _StateSpace):
    """Mamba-2: as Mamba, with heads."""

    mixer: ClassVar[ModuleType] = mamba2_block

    def build(self):
        from modelbudget.modules.mamba2_block import StateSpaceDualMixer
        from modelbudget.modules.state_space import state_space_model

        return state_space_model(self, StateSpaceDualMixer)


def assembled(a: Fields, mixer: Values) -> Terms:
    """Combine the parameters of a layer's mixer with those of embedding, norms and head."""
    of_norm = norm.parameters(a)
    return {
        **part("", {"embedding.token": embedding.token(a), "head": embedding.head(a)}),
        **part("layer.mixer", mixer, a.n_layer),
        **part("layer", {"norm": of_norm}, a.n_layer),
        **part("norm", {"final": of_norm}),
    }


def _layer(a: Fields, r: Run, mixer: ModuleType):
    norm_, mix = norm.make("norm", a, r), make_part("mixer", mixer.program, a, r)
    return lambda x: x + mix(norm_(x))
