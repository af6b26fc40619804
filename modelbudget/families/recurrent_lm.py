"""Recurrent language models, over words as such or over words as letters."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Count
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import character_input, embedding, recurrent_layer
from modelbudget.components.character_input import CharacterInputFields
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.recurrent_layer import RecurrentLayerFields


class RecurrentLM(RecurrentLayerFields, HeadFields, VocabularyFields):
    """Token embedding, recurrent layers, head."""

    has_cache: ClassVar[bool] = True

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "d_projection == d_model",
            "tied = true needs a last layer that hands on d_model = {d_model}; "
            "it hands on {d_projection}: set d_last or d_projection",
            when="tied and projected",
        ),
        Constraint(
            "d_last == d_model",
            "tied = true needs a last layer that hands on d_model = {d_model}; "
            "it hands on {d_last}: set d_last or d_projection",
            when="tied and not projected",
        ),
    )

    @staticmethod
    def parameters(a) -> Terms:
        """Zaremba et al. 2014, §3; tied: Press & Wolf 2017; unlike widths: Merity et al. 2018."""
        return {
            **part("embedding", {"token": embedding.token(a, a.d_model)}),
            **part("layer", recurrent_layer.parameters(a)),
            **part("", {"head": embedding.head(a, recurrent_layer.width(a))}),
        }

    @classmethod
    def _holds(cls, quantity, a, r):
        return int(quantity == "cache_bytes")

    @staticmethod
    def cache_bytes(a, r) -> Terms:
        return part("", {"layer": recurrent_layer.cached(a, r)})

    def build(self):
        from modelbudget.modules.recurrent_lm import RecurrentLMModel

        return RecurrentLMModel(self)


class CharacterLM(RecurrentLayerFields, CharacterInputFields):
    """Words come in as letters and go out as words: there is no table to tie the head to."""

    n_vocab: Count = Field(description="words that the head scores")
    head_bias: bool = Field(False, description="the head adds a bias for each word")

    @staticmethod
    def parameters(a) -> Terms:
        """Jozefowicz et al. 2016, Figure 1 (b): CNN inputs under a softmax over whole words."""
        width = recurrent_layer.width(a)
        return {
            **part("embedding", character_input.parameters(a)),
            **part("layer", recurrent_layer.parameters(a)),
            **part("", {"head": a.n_vocab * width + a.head_bias * a.n_vocab}),
        }

    def build(self):
        from modelbudget.modules.recurrent_lm import CharacterLMModel

        return CharacterLMModel(self)
