"""Mamba-2's mixer in a layer of a decoder."""

from types import SimpleNamespace

from torch import nn

from modelbudget.modules.mamba2_block import StateSpaceDualMixer


def make(a) -> StateSpaceDualMixer:
    """Build the mixer, whose sizes have other names in its own family."""
    mixer = StateSpaceDualMixer(
        SimpleNamespace(
            d_model=a.d_model,
            d_inner=a.n_mamba_head * a.d_mamba_head,
            n_head=a.n_mamba_head,
            d_head=a.d_mamba_head,
            n_group=a.n_mamba_group,
            d_state=a.d_mamba_state,
            d_convolution=a.d_mamba_convolution,
        )
    )
    if not a.mamba_norm:
        mixer.norm = nn.Identity()
    return mixer
