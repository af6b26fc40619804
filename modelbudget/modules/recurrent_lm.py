"""Recurrent language models."""

from torch import nn

from modelbudget.modules.character_input import CharacterInput
from modelbudget.modules.embedding import TokenEmbedding
from modelbudget.modules.language_model import LanguageModel
from modelbudget.modules.lm_head import make_head
from modelbudget.modules.recurrent_layer import recurrent_layers


def recurrent_lm(a) -> LanguageModel:
    embedding, layers = TokenEmbedding(a), recurrent_layers(a)
    return LanguageModel(embedding, layers, make_head(a, embedding.token, layers[-1].width))


class CharacterLM(LanguageModel):
    """Characters (batch, length, letters) to logits (batch, length, n_vocab)."""

    def __init__(self, a):
        layers = recurrent_layers(a)
        head = nn.Linear(layers[-1].width, a.n_vocab, bias=a.head_bias)
        super().__init__(CharacterInput(a), layers, head)
        self.shape_of_token = a.shape_of_token
