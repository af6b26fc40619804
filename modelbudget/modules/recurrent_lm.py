"""Recurrent language models."""

from torch import nn

from modelbudget.modules.character_input import CharacterInput
from modelbudget.modules.embedding import padded
from modelbudget.modules.lm_head import make_head
from modelbudget.modules.recurrent_layer import recurrent_layers


class RecurrentLMModel(nn.Module):
    """Tokens (batch, length) to logits (batch, length, n_vocab)."""

    def __init__(self, a):
        super().__init__()
        self.embedding = nn.ModuleDict({"token": nn.Embedding(padded(a), a.d_model)})
        self.layer = recurrent_layers(a)
        self.head = make_head(a, self.embedding["token"], self.layer[-1].width)

    def forward(self, tokens):
        x = self.embedding["token"](tokens)
        for layer in self.layer:
            x = layer(x)
        return self.head(x)


class CharacterLMModel(nn.Module):
    """Characters (batch, length, letters) to logits (batch, length, n_vocab)."""

    def __init__(self, a):
        super().__init__()
        self.shape_of_token = a.shape_of_token
        self.embedding = CharacterInput(a)
        self.layer = recurrent_layers(a)
        self.head = nn.Linear(self.layer[-1].width, a.n_vocab, bias=a.head_bias)

    def forward(self, characters):
        x = self.embedding(characters)
        for layer in self.layer:
            x = layer(x)
        return self.head(x)
