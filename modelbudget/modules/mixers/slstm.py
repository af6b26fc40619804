"""sLSTM, its recurrence written out step by step."""

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsStates
from modelbudget.modules.causal_convolution import CausalConvolution
from modelbudget.modules.head_linear import HeadLinear
from modelbudget.modules.norm import HeadNorm


class SLSTM(KeepsStates):
    """States (batch, length, d_model) to states of the same shape.

    The bias has a row for each of `GATES`.
    """

    follows_run = True

    def __init__(self, a):
        super().__init__()
        self.n_head, self.d_head = a.n_slstm_head, a.d_slstm_head
        sizes = self.n_head, self.d_head
        self.convolution = CausalConvolution(a.d_model, a.d_slstm_convolution)
        self.input_gate = HeadLinear(*sizes, self.d_head)
        self.forget_gate = HeadLinear(*sizes, self.d_head)
        self.cell_input = HeadLinear(*sizes, self.d_head)
        self.output_gate = HeadLinear(*sizes, self.d_head)
        self.hidden = HeadLinear(*sizes, 4 * self.d_head)
        self.bias = nn.Parameter(torch.empty(4, a.d_model))
        self.norm = HeadNorm(self.n_head * self.d_head, bias=False)
        self.shapes = [(a.d_model,)] * 4  # hidden state, cell, normaliser, stabiliser

    def forward(self, x):
        batch, length, width = x.shape
        convolved = self.by_head(F.silu(self.convolution(x)))
        x = self.by_head(x)
        gates = [self.input_gate(convolved), self.forget_gate(convolved)]
        gates += [self.cell_input(x), self.output_gate(x)]
        # (4, batch, length, d_model)
        of_tokens = torch.stack([y.transpose(0, 1).reshape(batch, length, width) for y in gates])
        states = self.cache.tensors if self.cache else [convolved.new_zeros(batch, width)] * 4
        outputs = []
        for new in (of_tokens + self.bias[:, None, None]).unbind(2):
            states = step(new + self.of_state(states[0].to(new.dtype)), *states)
            outputs.append(states[0].to(new.dtype))
        self.keep(*states)
        return self.norm(torch.stack(outputs, 1).unflatten(2, (self.n_head, self.d_head)))

    def by_head(self, x):
        """(batch, length, d_model) to (n_head, batch · length, d_head)."""
        return x.flatten(0, 1).unflatten(1, (self.n_head, self.d_head)).transpose(0, 1)

    def of_state(self, hidden):
        """(batch, d_model), the hidden state, to what the gates read of it: (4, batch, d_model)."""
        heads = hidden.unflatten(1, (self.n_head, self.d_head)).transpose(0, 1)
        gates = self.hidden(heads).unflatten(2, (4, self.d_head))  # (n_head, batch, 4, d_head)
        return gates.permute(2, 1, 0, 3).flatten(2)


def step(gates, hidden, cell, normaliser, largest):
    """Compute the next states (Beck et al. 2024, eq. 8 to 17): each (batch, d_model).

    gates: (4, batch, d_model), before their functions; the forget gate is a sigmoid.
    """
    write, keep, new, out = gates
    keep = F.logsigmoid(keep) + largest
    top = torch.maximum(keep, write)
    written, kept = torch.exp(write - top), torch.exp(keep - top)
    cell = kept * cell + written * torch.tanh(new)
    normaliser = kept * normaliser + written
    return torch.sigmoid(out) * cell / normaliser, cell, normaliser, top


make = SLSTM
