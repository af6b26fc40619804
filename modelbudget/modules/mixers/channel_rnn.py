"""One small RNN for each channel."""

import torch
from torch import nn

from modelbudget.modules.cache import KeepsStates


class ChannelRNN(KeepsStates):
    """d_model independent Elman cells, each with one input and d_hidden states.

    (batch, length, d_model) to the same shape: a channel's output is the mean of its cell's states.

    The cells run together as batched products. d_model separate nn.RNN(1, d_hidden) have the same
    parameters and give the same numbers (checked by a test), but launch hundreds of times as many
    kernels.
    """

    def __init__(self, a):
        super().__init__()
        self.input = nn.Parameter(torch.empty(a.d_model, a.d_hidden))
        self.hidden = nn.Parameter(torch.empty(a.d_model, a.d_hidden, a.d_hidden))
        self.biases = nn.Parameter(torch.empty(2, a.d_model, a.d_hidden))
        self.shapes = [(a.d_model, a.d_hidden)]

    def forward(self, x):
        (state,) = self.states(x)
        bias = self.biases.sum(0)
        outputs = []
        for step in x.unbind(1):
            carried = torch.einsum("bdj,dij->bdi", state, self.hidden)
            state = torch.tanh(step.unsqueeze(-1) * self.input + carried + bias)
            outputs.append(state.mean(-1))
        self.keep(state)
        return torch.stack(outputs, dim=1)


make = ChannelRNN
