"""Rotary positions: pairs of channels are turned by an angle that grows with the place (Su et al.
2021, §3.2).
"""

from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_config import bytes_of, tokens
from modelbudget.memory.timeline import Node

ANGLE = 4
"""Bytes of an angle, one for two turned channels, in single precision whatever the dtype."""


def tables(r, d_turned):
    """Bytes of sines and cosines of half the turned channels each; queries and keys have their
    own.
    """
    return bytes_of(r.dtype) * r.length * d_turned


def forward(r, n_head, d_head, d_turned) -> list[Node]:
    """Both halves of the turned channels, put together, beside sines, cosines and the angles."""
    size = bytes_of(r.dtype) * tokens(r) * n_head
    angles = ANGLE // 2 * r.length * d_turned
    halves = size * d_turned
    made = size * d_head + tables(r, d_turned)
    return [(made + halves + angles, halves + angles)]


def backward(r, n_head, d_head, d_turned, given=1) -> list[Node]:
    """Four products of halves; the turned channels put together; those that are not turned, and
    theirs, each in a tensor of all channels; and the sum. The gradient of the output is freed if
    `given` is 1.
    """
    size = bytes_of(r.dtype) * tokens(r) * n_head
    turned, whole = size * d_turned, size * d_head
    in_part = positive(d_head - d_turned)
    return [
        (2 * turned, turned + tables(r, d_turned)),
        (whole, given * whole),
        (in_part * whole, in_part * turned),
        (whole, whole + in_part * whole + (1 - in_part) * turned),
    ]
