"""Bytes of quantised weight matrices, by the tensors that the named format stores."""

from typing import Any, NamedTuple

from modelbudget.architecture.operations import ceil_div, largest, positive
from modelbudget.architecture.run_values import bytes_of

BLOCK = 128
"""Rows and columns of a block of `fp8-block`."""
INT32, FLOAT32, FLOAT16 = 4, 4, 2
BITSANDBYTES_BLOCK, NESTED_BLOCK = 64, 256
CODE_4BIT, CODE_8BIT = 16, 256
"""Values of a block of bitsandbytes, of a block of its scales, and of their look-up tables."""
MXFP4_BLOCK = 32


class Matrix(NamedTuple):
    """Weights of `n` linear layers that a format can convert: d_in channels to d_out channels.

    `routed` 1: of routed experts. The bias is not part of it.
    """

    name: str
    d_in: Any
    d_out: Any
    n: Any = 1
    routed: int = 0


def numbers_of(matrices: list[Matrix]):
    """Count the weights of all of them."""
    return sum(m.n * m.d_in * m.d_out for m in matrices)


def matrix_bytes(m: Matrix, r):
    """Return the bytes of one of the matrices in the run's weight format."""
    numbers, size = m.d_in * m.d_out, bytes_of(r.dtype)
    group = largest(1, r.weight_group + (1 - positive(r.weight_group)) * m.d_in)
    groups = ceil_div(m.d_in, group)
    blocks = ceil_div(numbers, BITSANDBYTES_BLOCK)
    match r.weights:
        case "awq":
            # qweight, qzeros (4 bits each), scales: WQLinear_GEMM of AutoAWQ 0.2.9.
            return ceil_div(numbers, 2) + groups * (ceil_div(m.d_out, 2) + FLOAT16 * m.d_out)
        case "gptq-4bit" | "gptq-8bit":
            # qweight, qzeros, scales, and g_idx: the group of each input channel (AutoGPTQ 0.7.1).
            per_byte = 2 if r.weights == "gptq-4bit" else 1
            packed = ceil_div(numbers, per_byte) + groups * ceil_div(m.d_out, per_byte)
            return packed + groups * FLOAT16 * m.d_out + INT32 * m.d_in
        case "bnb-8bit":
            # The weight and one scale for each row: Dettmers et al. 2022, §2.1; bitsandbytes 0.50.
            return numbers + FLOAT32 * m.d_out
        case "bnb-4bit":
            # The weight, a scale for each block, the table of 16 values: bitsandbytes 0.50.
            return ceil_div(numbers, 2) + FLOAT32 * (blocks + CODE_4BIT)
        case "bnb-4bit-double":
            # As bnb-4bit, with scales of 8 bits, which have scales, a table and an offset:
            # Dettmers et al. 2023 (QLoRA), §3.
            nested = ceil_div(blocks, NESTED_BLOCK) + CODE_8BIT + 1
            return ceil_div(numbers, 2) + blocks + FLOAT32 * (nested + CODE_4BIT)
        case "fp8-block":
            # A scale for each block: DeepSeek-AI 2024 (DeepSeek-V3), §3.3.2; FP8Linear.
            of_blocks = ceil_div(m.d_out, BLOCK) * ceil_div(m.d_in, BLOCK)
            return numbers + FLOAT32 * of_blocks
        case "fp8-channel" | "int8-channel":
            # A scale in the run's dtype for each row: compressed-tensors 0.20.
            return numbers + size * m.d_out
        case "int4-group":
            # weight_packed, weight_scale, and weight_shape, two 64-bit numbers:
            # compressed-tensors 0.20, pack-quantized.
            return INT32 * ceil_div(m.d_in, 8) * m.d_out + size * groups * m.d_out + 16
        case "mxfp4":
            # Two values a byte and a scale for each 32: OCP Microscaling Formats 1.0, §5.
            converted = ceil_div(numbers, 2) + ceil_div(m.d_in, MXFP4_BLOCK) * m.d_out
            return m.routed * converted + (1 - m.routed) * size * numbers
    raise ValueError(f"weights = {r.weights!r}: no formula")


KEPT = ("shared_gate", "index_weight")
"""Linear layers of layers that no format converts."""


class StoredWeights:
    """The format of a run, for the matrices of linear layers in a program."""

    def __init__(self, r):
        self.r, self.compute_dtype = r, r.dtype

    def converts(self, path: str) -> bool:
        """Return whether the layer at a path is stored in the format: those of the layers."""
        names = path.split(".")
        return names[0] == "layer" and names[-1] not in KEPT

    def n_bytes(self, d_in, d_out):
        return matrix_bytes(Matrix("", d_in, d_out), self.r)

    def n_nested_scale(self, d_in, d_out):
        """Return the scales that are dequantised before their matrix is."""
        if self.r.weights != "bnb-4bit-double":
            return 0
        return ceil_div(d_in * d_out, BITSANDBYTES_BLOCK)


def by_format(matrices: list[Matrix], r) -> dict[str, Any]:
    """Return the bytes that the format adds to those in the run's dtype, by component.

    They are negative where it is smaller.
    """
    found: dict[str, Any] = {}
    for m in matrices:
        change = m.n * (matrix_bytes(m, r) - bytes_of(r.dtype) * m.d_in * m.d_out)
        found[m.name] = found.get(m.name, 0) + change
    return found
