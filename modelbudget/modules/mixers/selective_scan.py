"""Mamba's mixer in a layer of a decoder, with norms inside (Jamba)."""

from types import SimpleNamespace

from torch import nn

from modelbudget.modules.mamba import SelectiveScanMixer


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


def make(a) -> NormalisedScanMixer:
    """Build the mixer, whose sizes have other names in Mamba's own family."""
    return NormalisedScanMixer(
        SimpleNamespace(
            d_model=a.d_model,
            d_inner=a.d_scan,
            d_state=a.d_scan_state,
            d_step=a.d_scan_step,
            d_convolution=a.d_scan_convolution,
            inner_norm=False,
        )
    )
