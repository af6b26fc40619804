"""Mamba's mixer in a layer, with norms inside (Jamba) or with heads (Zamba)."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.mamba_block import SelectiveScanMixer, scan


class NormalisedScanMixer(SelectiveScanMixer):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a):
        super().__init__(a)
        self.step_norm = nn.RMSNorm(a.d_step)
        self.write_norm = nn.RMSNorm(a.d_state)
        self.read_norm = nn.RMSNorm(a.d_state)

    def selected(self, x):
        step, write, read = super().selected(x)
        return self.step_norm(step), self.write_norm(write), self.read_norm(read)


class LinearOfHead(nn.Linear):
    """The rows of a matrix that belong to one of its heads, as a linear layer."""

    def forward(self, x, head: int, n_head: int):
        bias = None if self.bias is None else self.bias.chunk(n_head)[head]
        return F.linear(x, self.weight.chunk(n_head)[head], bias)


class HeadedScanMixer(SelectiveScanMixer):
    """States (batch, length, d_model) to states of the same shape.

    Each head selects from its own channels, and for them alone.
    """

    def __init__(self, a, n_head: int):
        super().__init__(a)
        self.n_head = n_head
        selected = n_head * sum(self.sizes)
        self.selection = LinearOfHead(a.d_inner // n_head, selected, bias=False)
        self.step = LinearOfHead(a.d_step, a.d_inner)

    def scanned(self, x, state):
        decays = (-self.decay.exp()).chunk(self.n_head)
        heads = zip(x.chunk(self.n_head, -1), decays, state.chunk(self.n_head, 1), strict=True)
        of_heads = [self.of_head(i, *head) for i, head in enumerate(heads)]
        outputs, states = zip(*of_heads, strict=True)
        return torch.cat(outputs, dim=-1), torch.cat(states, dim=1)

    def of_head(self, i: int, x, decay, state):
        """(batch, length, channels of a head) to the same shape, and the head's last state."""
        step, write, read = self.selection(x, i, self.n_head).split(self.sizes, -1)
        return scan(x, F.softplus(self.step(step, i, self.n_head)), decay, write, read, state)


def make(a) -> SelectiveScanMixer:
    """Build the mixer, whose sizes have other names in Mamba's own family."""
    sizes = SimpleNamespace(
        d_model=a.d_model,
        d_inner=a.d_scan,
        d_state=a.d_scan_state,
        d_step=a.d_scan_step,
        d_convolution=a.d_scan_convolution,
        inner_norm=False,
    )
    return NormalisedScanMixer(sizes) if a.scan_norm else HeadedScanMixer(sizes, a.n_scan_head)
