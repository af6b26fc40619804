"""Positions as waves, added or as a turn: no parameters."""

import torch

WAVELENGTH = 10_000.0


def angles(places, width: int):
    """Places (length,) times frequencies that fall from 1 to 1/10,000: (length, ⌈width / 2⌉)."""
    steps = torch.arange(0, width, 2, device=places.device) / width
    return torch.outer(places.float(), WAVELENGTH**-steps)


def sinusoid(places, width: int):
    """Places (length,) to (length, width): sines of falling frequency, then cosines (Vaswani et
    al. 2017, §3.5, with all sines first).
    """
    angle = angles(places, width)
    return torch.cat((angle.sin(), angle.cos()), dim=1)[:, :width]


def rotate(x):
    """Turn pairs of channels by an angle that grows with the position (Su et al. 2021, eq. 34).

    x is (…, length, width), and the pairs are channel i and i + width/2.
    """
    angle = angles(torch.arange(x.shape[-2], device=x.device), x.shape[-1])
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
