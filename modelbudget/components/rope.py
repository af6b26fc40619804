"""Rotary position embedding (RoPE), Su et al. 2021, §3.2."""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.run_values import bytes_of, tokens
from modelbudget.memory.timeline import Allocation, Timeline
from modelbudget.operations.elementwise import without_gradient
from modelbudget.operations.joining import cat
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.tape import Tensor, complex_of, empty
from modelbudget.operations.views import view_as_complex, view_as_real

ANGLE = 4
"""Bytes of an angle, one for each pair of channels, in single precision in every dtype."""


def tables(r, d_rotary):
    """Bytes of the cosine and sine tables of d_rotary channels; queries and keys have their own.

    Tables that all layers share have numbers of all channels: each is as large as both.
    """
    return bytes_of(r.dtype) * r.length * d_rotary


def forward(r, n_head, d_head, d_rotary) -> Timeline:
    """Return the timeline of RoPE on n_head heads.

    The rotated copy and the tables stay; the halves and the angles are freed.
    """
    size = bytes_of(r.dtype) * tokens(r) * n_head
    angles = ANGLE // 2 * r.length * d_rotary
    halves = size * d_rotary
    allocated = size * d_head + tables(r, d_rotary)
    return [Allocation("RoPE", allocated + halves + angles, halves + angles)]


def backward(r, n_head, d_head, d_rotary, frees_gradient=1) -> Timeline:
    """Return the timeline from the gradient of n_head heads after RoPE to that before it.

    The gradient after it is freed if `frees_gradient` is 1.
    """
    size = bytes_of(r.dtype) * tokens(r) * n_head
    rotated, whole = size * d_rotary, size * d_head
    in_part = positive(d_head - d_rotary)
    return [
        Allocation("RoPE products of halves", 2 * rotated, rotated + tables(r, d_rotary)),
        Allocation("RoPE rotated channels", whole, frees_gradient * whole),
        Allocation("RoPE other channels", in_part * whole, in_part * rotated),
        Allocation("RoPE sum", whole, whole + in_part * whole + (1 - in_part) * rotated),
    ]


def forward_whole(r, n_head, d_head) -> Timeline:
    """Return the timeline of RoPE on n_head heads with the tables of the model.

    Two products and a copy with the halves exchanged; the sum stays.
    """
    heads = bytes_of(r.dtype) * tokens(r) * n_head * d_head
    return [Allocation("RoPE", 3 * heads, 2 * heads)]


def backward_whole(r, n_head, d_head, table) -> Timeline:
    """Return the timeline from the gradient of n_head heads after such a RoPE to that before it.

    `table`: bytes of the cosines, and of the sines,
    if nothing reads them in backward after these.
    """
    size = bytes_of(r.dtype)
    heads, half = (n_bytes * tokens(r) * n_head * d_head for n_bytes in (size, size // 2))
    return [
        Allocation("RoPE product with the sines", heads, 0, table),
        Allocation("RoPE first half", half + heads, half),
        Allocation("RoPE second half", heads, heads),
        Allocation("RoPE sum of the halves", heads, 2 * heads),
        Allocation("RoPE product with the cosines", heads, heads, table),
        Allocation("RoPE sum", heads, 2 * heads),
    ]


def rotate(x: Tensor, d_rotary) -> Tensor:
    """Rotate the first d_rotary channels of x (batch, heads, length, channels), with own tables."""
    rotated = x.narrow(-1, d_rotary)
    other_channels = x.narrow(-1, x.shape[-1] - d_rotary, is_first=False)
    angle = angles(x.shape[-2], d_rotary)  # (length, d_rotary / 2)
    cos, sin = without_gradient(angle).to(x.dtype), without_gradient(angle).to(x.dtype)
    first, second = rotated.chunk(2)
    return cat(
        (
            first * cos - second * sin,
            second * cos + first * sin,
            other_channels,
        )
    )


def tables_of_model(length, frequencies: Tensor, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return positions, cosines and sines (length, d_rotary) that all layers share."""
    places = empty((length,), "int64")
    angle = _outer(without_gradient(places, "float32"), frequencies.select(0))
    angle = cat((angle, angle))
    cos = without_gradient(angle).to(dtype)
    return places, cos, without_gradient(angle).to(dtype)


def positions(batch, length) -> Tensor:
    """Return the position of each token, (batch, length), for RoPE over complex numbers."""
    places = empty((length,), "int64")
    return places.expand((batch, length)).contiguous()


def table_of_complex(length, d_rotary, dtype: str) -> Tensor:
    """Return a complex number for each position and pair of channels: (length, d_rotary / 2)."""
    return empty((length, d_rotary // 2), complex_of(at_least_float32(dtype)))


def rotate_complex(heads, rows: Tensor) -> list[Tensor]:
    """Multiply each two channels that follow each other, as a complex number, by a row's."""
    pairs = [view_as_complex(_in_pairs(x)) for x in heads]
    products = [view_as_real(x * rows.unsqueeze(1)).flatten(-2) for x in pairs]
    return [product.to(x.dtype) for product, x in zip(products, heads, strict=True)]


def _in_pairs(x: Tensor) -> Tensor:
    return x.to(at_least_float32(x.dtype)).unflatten(-1, (x.shape[-1] // 2, 2))


def rotate_with(heads, cos: Tensor, sin: Tensor, by_head: bool, rope_dtype="dtype") -> list[Tensor]:
    """Rotate queries and keys with the tables of the model: x · cos + (halves exchanged) · sin.

    With a dtype of its own the results are cast back, once both are there.
    """
    rotated = _rotated_with(heads, cos, sin, by_head)
    if rope_dtype == "dtype":
        return rotated
    return [y.to(x.dtype) for y, x in zip(rotated, heads, strict=True)]


def _rotated_with(heads, cos: Tensor, sin: Tensor, by_head: bool) -> list[Tensor]:
    d_rotary, d_head = cos.shape[-1], heads[0].shape[-1]
    if not by_head and d_rotary == d_head:
        return [_rotate_whole(x, cos, sin) for x in heads]
    parts = [(x.narrow(-1, d_rotary), x.narrow(-1, d_head - d_rotary, False)) for x in heads]
    return [cat((_rotate_whole(x, cos, sin), other_channels)) for x, other_channels in parts]


def _rotate_whole(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + _halves_exchanged(x) * sin


def _halves_exchanged(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return cat((-x.narrow(-1, x.shape[-1] - half, is_first=False), x.narrow(-1, half)))


def angles(length, n_channel) -> Tensor:
    """Return position × frequency (length, n_channel / 2), in float32."""
    places = empty((length,), "int64")
    return _outer(places, _frequencies(-(-n_channel // 2)))


def _frequencies(n) -> Tensor:
    """wavelength ** (-arange / n): each operation frees its argument."""
    return without_gradient(without_gradient(without_gradient(empty((n,), "int64")), "float32"))


def _outer(places: Tensor, frequencies: Tensor) -> Tensor:
    return empty((places.shape[0], frequencies.shape[0]), "float32")
