"""Words as sequences of characters: convolutions, the maximum over places, highway layers."""

import torch
from torch import nn
from torch.nn import functional as F


class Highway(nn.Module):
    """(…, width) to (…, width): a gate mixes the input and its transformation."""

    def __init__(self, width: int):
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.transform = nn.Linear(width, width)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        return gate * F.relu(self.transform(x)) + (1 - gate) * x


class CharacterInput(nn.Module):
    """Characters (batch, length, n_letter) to word vectors (batch, length, d_model).

    Words are padded to the same number of letters.
    """

    def __init__(self, a):
        super().__init__()
        self.character = nn.Embedding(a.n_character, a.d_character)
        filters = [a.n_narrow] + [a.n_narrow * 2**i for i in range(a.n_span - 1)]
        self.filter = nn.ModuleList(
            nn.Conv1d(a.d_character, n, span) for span, n in enumerate(filters, start=1)
        )
        self.highway = nn.ModuleList(Highway(a.n_filter) for _ in range(a.n_highway))
        self.projection = nn.Linear(a.n_filter, a.d_model)

    def forward(self, characters):
        letters = self.character(characters.flatten(0, 1)).transpose(1, 2)
        x = torch.cat([F.relu(f(letters)).amax(-1) for f in self.filter], dim=-1)
        for highway in self.highway:
            x = highway(x)
        return self.projection(x).unflatten(0, characters.shape[:2])
