"""What vLLM's sampling of tokens holds after a forward pass, by its kernel."""

from typing import Any

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import bytes_of

FLOAT32, INT64 = 4, 8
SEGMENTED_ROWS = 128
"""Rows from which on torch sorts each as a segment; fewer are sorted as one, but a single row."""


def sampling_bytes(a: Any, run: RunConfig) -> int:
    """Return the bytes of vLLM's sampling, which follows the forward pass when that has ended.

    Of each request the logits of the whole vocabulary in the dtype and in float32
    (v1/sample/sampler.py), and probabilities and noise next to them, or what torch.sort needs.
    """
    of_logits = bytes_of(run.dtype) + FLOAT32
    more = sort_bytes(run.sampled_requests) if run.sampling_kernel == "sort" else 2 * FLOAT32
    return (of_logits + more) * run.sampled_requests * a.n_vocab


def sort_bytes(n_row: int) -> int:
    """Return the bytes that torch.sort takes for each float32 number of rows, on a GPU.

    Values and indices, the indices before, and CUB's copies of keys and indices. Of a few rows each
    index has its row next to it, twice, and keys are sorted apart (torch's
    native/cuda/SortStable.cu and cuda/cub.cuh).
    """
    sorted_numbers, copies = FLOAT32 + INT64, FLOAT32 + INT64
    if n_row == 1 or n_row >= SEGMENTED_ROWS:
        return sorted_numbers + INT64 + copies
    return sorted_numbers + 2 * INT64 + FLOAT32 + copies
