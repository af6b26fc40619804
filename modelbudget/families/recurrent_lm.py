"""Recurrent language models over words, read from a table or as characters."""

from modelbudget.architecture.base import Count
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import character_input, embedding, recurrent_layer
from modelbudget.components.character_input import CharacterInputFields
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.language_model import in_a_row
from modelbudget.components.recurrent_layer import RecurrentLayerFields
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part


class RecurrentLM(RecurrentLayerFields, HeadFields, VocabularyFields):
    """Token embedding, recurrent layers, head."""

    @staticmethod
    def parameters(a) -> Terms:
        """Zaremba et al. 2014, §3; tied: Press & Wolf 2017; unlike widths: Merity et al. 2018."""
        return {
            **part("embedding", {"token": embedding.token(a, a.d_model)}),
            **part("layer", recurrent_layer.parameters(a)),
            **part("", {"head": embedding.head(a, recurrent_layer.width(a))}),
        }

    @staticmethod
    def model_program(a: Fields, r: Run):
        token = make_part("embedding.token", embedding.table_program, embedding.rows(a), a.d_model)
        layers = recurrent_layer.make_recurrent_layers(a, r)
        head = make_part(
            "head", embedding.head_program, a, r, token.weight, recurrent_layer.width(a)
        )
        return in_a_row(token, layers, head)

    def build(self):
        from modelbudget.modules.recurrent_lm import recurrent_lm

        return recurrent_lm(self)


class CharacterLM(RecurrentLayerFields, CharacterInputFields):
    """Words are read as characters and predicted as words: no table to tie the head to."""

    n_vocab: Count
    head_bias: bool = False

    @staticmethod
    def parameters(a) -> Terms:
        """Jozefowicz et al. 2016, Figure 1 (b): CNN inputs under a softmax over whole words."""
        width = recurrent_layer.width(a)
        return {
            **part("embedding", character_input.parameters(a)),
            **part("layer", recurrent_layer.parameters(a)),
            **part("", {"head": a.n_vocab * width + a.head_bias * a.n_vocab}),
        }

    @property
    def shape_of_token(self) -> tuple[int, ...]:
        return (self.n_letter,)

    @classmethod
    def is_language_model(cls) -> bool:
        return True

    @staticmethod
    def model_program(a: Fields, r: Run):
        words = make_part("embedding", character_input.program, a)
        layers = recurrent_layer.make_recurrent_layers(a, r)
        head = make_linear("head", recurrent_layer.width(a), a.n_vocab, a.head_bias)
        return in_a_row(words, layers, head)

    def build(self):
        from modelbudget.modules.recurrent_lm import CharacterLM

        return CharacterLM(self)
