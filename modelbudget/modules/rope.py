"""Rotary position embedding (RoPE)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

WAVELENGTH = 10_000.0


def rotate(x, d_rotary: int, start: int = 0):
    """Apply RoPE to the first d_rotary channels (Su et al. 2021, eq. 34).

    x is (batch, heads, length, channels), from position `start` on. The pairs are channel i and i +
    d_rotary/2, as in Llama's published checkpoints.
    """
    rotated, kept = x[..., :d_rotary], x[..., d_rotary:]
    angle = angles(x.shape[-2], d_rotary, x.device, start)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = rotated.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, kept), dim=-1)


class Rotation(NamedTuple):
    """Positions of tokens (length,), and their cosines and sines (length, d_rotary) for RoPE.

    For RoPE over complex numbers only the positions, (batch, length).
    """

    places: torch.Tensor
    cos: Any = None
    sin: Any = None


def rotation(length: int, frequency, like, start: int = 0, exact: bool = False) -> Rotation:
    """Return the tables of RoPE that all layers share, as wide as the rotated channels.

    In the dtype of `like`, or `exact` in float32.
    """
    dtype = frequency.dtype if exact else like.dtype
    places = torch.arange(start, start + length, device=like.device)
    angle = torch.outer(places.float(), frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return Rotation(places, angle.cos().to(dtype), angle.sin().to(dtype))


def rotate_with(
    heads: Sequence, tables: Rotation, by_head: bool = False, casts_back: bool = False
) -> list:
    """Apply RoPE as `rotate` to queries and keys, with the tables of the model.

    The results are contiguous per head if only some channels are rotated, or if `by_head`; with
    `casts_back` they have the dtype of queries and keys, whatever the tables have.
    """
    rotated = _rotated_with(heads, tables, by_head)
    if not casts_back:
        return rotated
    return [y.to(x.dtype) for y, x in zip(rotated, heads, strict=True)]


def _rotated_with(heads: Sequence, tables: Rotation, by_head: bool) -> list:
    d_rotary = tables.cos.shape[-1]
    if not by_head and d_rotary == heads[0].shape[-1]:
        return [rotate_all(x, tables) for x in heads]
    parts = [(x[..., :d_rotary], x[..., d_rotary:]) for x in heads]
    return [torch.cat((rotate_all(x, tables), unrotated), dim=-1) for x, unrotated in parts]


def rotate_all(x, tables: Rotation):
    """Apply RoPE to all channels."""
    half = x.shape[-1] // 2
    return x * tables.cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * tables.sin


def complex_table(length: int, d_rotary: int, like):
    """(length, d_rotary / 2): a complex number of modulus 1 for each position and frequency."""
    exact = torch.promote_types(like.dtype, torch.float32)
    angle = angles(length, d_rotary, like.device).to(exact)
    return torch.polar(torch.ones_like(angle), angle)


def rotate_complex(heads: Sequence, rows) -> list:
    """Apply RoPE to all channels, each two that follow each other as one complex number.

    `rows`: (batch, length, pairs), those of the table for the tokens. Computed in at least float32,
    as Llama's code does.
    """
    pairs = [torch.view_as_complex(_in_pairs(x)) for x in heads]
    products = [torch.view_as_real(x * rows.unsqueeze(1)).flatten(-2) for x in pairs]
    return [product.to(x.dtype) for product, x in zip(products, heads, strict=True)]


def _in_pairs(x):
    return x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, 2))


def angles(length: int, n_channel: int, device, start: int = 0):
    """(length, ⌈n_channel / 2⌉): position × frequency, wavelengths from 2π to 10,000 · 2π."""
    places = torch.arange(start, start + length, device=device)
    return torch.outer(places, frequencies(n_channel, device))


def frequencies(n_channel: int, device):
    """(⌈n_channel / 2⌉,): radians per position, of wavelengths from 2π to 10,000 · 2π."""
    return WAVELENGTH ** (-torch.arange(0, n_channel, 2, device=device) / n_channel)
