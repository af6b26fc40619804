"""Recurrent language models over words, read from a table or as characters."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Count
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import tokens
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
            "tied = true needs a last layer of width d_model = {d_model}; "
            "its width is {d_projection}: set d_last or d_projection",
            when="tied and projected",
        ),
        Constraint(
            "d_last == d_model",
            "tied = true needs a last layer of width d_model = {d_model}; "
            "its width is {d_last}: set d_last or d_projection",
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

    @staticmethod
    def trained_tensors(a: Fields) -> Terms:
        ends = {"embedding.token": 1, "head": 1 - a.tied + a.head_bias}
        return part("", ends) | part("layer", recurrent_layer.n_tensors(a))

    @staticmethod
    def activation_bytes(a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass."""
        ends = embedding.saved_by_ends(a, r, recurrent_layer.width(a))
        return part("", ends) | part("layer", recurrent_layer.saved(a, r))

    @staticmethod
    def flops_forward(a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        head = 2 * tokens(r) * embedding.token(a, recurrent_layer.width(a))
        return part("", {"head": head}) | part("layer", recurrent_layer.flops(a, r))

    @staticmethod
    def flops_backward(a: Fields, r: Run) -> Terms:
        """FLOPs of the gradients."""
        head = 4 * tokens(r) * embedding.token(a, recurrent_layer.width(a))
        return part("", {"head": head}) | part("layer", recurrent_layer.flops_backward(a, r))

    @staticmethod
    def cache_bytes(a, r) -> Terms:
        return part("", {"layer": recurrent_layer.cached(a, r)})

    def build(self):
        from modelbudget.modules.recurrent_lm import RecurrentLMModel

        return RecurrentLMModel(self)


class CharacterLM(RecurrentLayerFields, CharacterInputFields):
    """Words are read as characters and predicted as words: no table to tie the head to."""

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
