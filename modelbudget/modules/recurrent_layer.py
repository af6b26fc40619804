"""Recurrent layers: Elman, GRU and LSTM cells, step by step."""

from typing import Any

import torch
from torch import nn

from modelbudget.modules.cache import KeepsStates

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


class RecurrentLayer(KeepsStates):
    """(batch, length, width below) to (batch, length, d_projection if projected, else n_cell).

    The order of the gates and the place of the biases are torch.nn.RNN's, GRU's and LSTM's, so
    their weights fit: weight_ih is `input`, weight_hh is `hidden`, weight_hr is `projection`.
    """

    def __init__(self, a, width_below: int, n_cell: int):
        super().__init__()
        gates = GATES[a.cell]
        width = a.d_projection if a.projected else n_cell
        self.input = nn.Linear(width_below, gates * n_cell, bias=a.input_bias)
        self.hidden = nn.Linear(width, gates * n_cell, bias=a.hidden_bias)
        self.projection = nn.Linear(n_cell, width, bias=False) if a.projected else None
        self.width, self.n_cell, self.cell = width, n_cell, a.cell
        # Its last output and, in an LSTM, its cell state.
        self.shapes = [(width,), (n_cell if a.cell == "lstm" else 0,)]

    def forward(self, x):
        state, cells = self.states(x)
        step = getattr(self, self.cell)
        states = []
        for below in self.input(x).unbind(1):
            state, cells = step(below, state, cells)
            states.append(state)
        self.keep(state, cells)
        return torch.stack(states, dim=1)

    def rnn(self, below, state, cells):
        return torch.tanh(below + self.hidden(state)), cells

    def gru(self, below, state, cells):
        from_below, from_state = below.chunk(3, -1), self.hidden(state).chunk(3, -1)
        reset = torch.sigmoid(from_below[0] + from_state[0])
        keep = torch.sigmoid(from_below[1] + from_state[1])
        new = torch.tanh(from_below[2] + reset * from_state[2])
        return (1 - keep) * new + keep * state, cells

    def lstm(self, below, state, cells):
        admit, keep, new, show = (below + self.hidden(state)).chunk(4, -1)
        cells = torch.sigmoid(keep) * cells + torch.sigmoid(admit) * torch.tanh(new)
        state = torch.sigmoid(show) * torch.tanh(cells)
        return state if self.projection is None else self.projection(state), cells


def recurrent_layers(a) -> Any:
    """n_layer layers of d_hidden cells, the last of d_last."""
    layers: Any = nn.ModuleList()
    below = a.d_model
    for n_cell in [a.d_hidden] * (a.n_layer - 1) + [a.d_last]:
        layer = RecurrentLayer(a, below, n_cell)
        layers.append(layer)
        below = layer.width
    return layers
