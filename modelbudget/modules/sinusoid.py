"""Positions as waves: no parameters."""

import torch


def sinusoid(places, width: int):
    """(length,) places to (length, width): sines of falling frequency, then cosines
    (Vaswani et al. 2017, §3.5, with all sines first).
    """
    steps = torch.arange(0, width, 2, device=places.device) / width
    angle = torch.outer(places.float(), 10_000.0**-steps)
    return torch.cat((angle.sin(), angle.cos()), dim=1)[:, :width]
