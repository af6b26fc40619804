"""Scaled dot-product attention: its products, saved tensors and allocations.

The unfused kernel (`math`) computes in at least single precision, from copies of queries, keys and
values where these are in half precision. The fused kernels never hold a score in memory.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import ceil_div, positive
from modelbudget.architecture.run_values import (
    bytes_of,
    exact_bytes,
    exchanges_context,
    index_of_device,
    tokens,
)
from modelbudget.devices import exchanged_heads, ring_blocks
from modelbudget.memory.timeline import Allocation, Timeline, change, times
from modelbudget.operations import attention_kernels as kernels
from modelbudget.operations.activation_checkpoint import checkpoint
from modelbudget.operations.operation import operation
from modelbudget.operations.part import NoProgramError

SEEDS = 24
"""Bytes of the random state that a GPU's FlashAttention saves, with dropout or without."""
TWO_SEEDS = 16
"""The same of memory-efficient attention."""
SINGLE = 4
"""Bytes of a number in single precision."""
SUM = SINGLE
"""Bytes of the logarithm of a row's sum in memory-efficient attention."""

FORWARD_PRODUCTS = 4
"""Twice the number of products of length²: queries by keys, and scores by values."""


class Heads(NamedTuple):
    """The inputs of attention: number and width of query, key and value heads.

    Channels per token: queries n_head · d_key, keys n_kv_head · d_key, values n_kv_head · d_value.
    """

    n_head: Any
    n_kv_head: Any
    d_key: Any
    """Channels of a query and of a key."""
    d_value: Any
    d_stored: Any
    """Channels of the storage that holds a value: the value's own, and others stored with it."""
    rope: int
    """Layout of queries and keys: 1, contiguous per head (RoPE output); 0, per token."""


def backward_products(r) -> int:
    """Return twice the number of length² products in half of a backward pass.

    Backward has two products for each forward product. Fused kernels also compute the scores again:
    five products instead of four (Dao 2024, §3.1.2).
    """
    return {"math": 4, "written_out": 4, "flash": 5, "efficient": 5}[r.attention_kernel]


def inputs(h, r):
    """Bytes of queries, keys and values."""
    width = (h.n_head + h.n_kv_head) * h.d_key + h.n_kv_head * h.d_stored
    return bytes_of(r.dtype) * tokens(r) * width


def saved(h, r):
    """Bytes saved for backward; with selective checkpointing, the inputs only."""
    if r.recompute == "selective":
        return inputs(h, r)
    return saved_once_computed(h, r)


def saved_once_computed(h, r):
    """Bytes that backward needs once the core has been computed.

    Math: queries, keys and values, the last two repeated for each query head, and the softmax of
    the scores, length² for each head. Flash: queries, keys, values, the result, and the logarithm
    of each row's sum (Dao et al. 2022, §3.1); backward computes the scores again. Efficient: as
    flash (Rabe & Staats 2021, §3), with keys and values repeated for each query head, and rows
    padded to a multiple of 32.
    """
    if r.attention_kernel == "math":
        b = _bytes(h, r)
        return 2 * b.queries + b.values_kept + b.scores
    repeated = _repeated(h, r)
    repeats = repeated * (_keys_and_values(r, h, h.n_head) - _keys_and_values(r, h, h.n_kv_head))
    return inputs(h, r) + repeats + _result(h, r)


def copied_result(h, r):
    """Return the bytes of the result that the output projection saves.

    It reads a copy, unless the result is contiguous per token, and what devices have exchanged.
    Checkpointed attention saves no result, so that the projection does.
    """
    fused = r.attention_kernel in ("flash", "efficient")
    kept_by_core = int(fused and r.recompute != "selective") * (1 - exchanges_context(r))
    return (1 - kept_by_core * (1 - result_apart(h, r))) * bytes_of_width(r, h.n_head * h.d_value)


def result_apart(h, r):
    """Return 1 where the result is contiguous per head, 0 where it is contiguous per token.

    FlashAttention's result has the layout of its queries; memory-efficient attention writes per
    token. One sequence of heads of one channel has the same layout either way.
    """
    by_head = int(r.attention_kernel == "math") + int(r.attention_kernel == "flash") * h.rope
    return by_head * apart(h, r) * positive(r.batch * h.d_value - 1)


def apart(h, r):
    """1 where a layout per head differs from one per token."""
    return positive(h.n_head - 1) * positive(r.length - 1)


def bytes_of_width(r, width):
    """Bytes of `width` channels of all tokens."""
    return bytes_of(r.dtype) * tokens(r) * width


def _keys_and_values(r, h, n_head):
    return bytes_of_width(r, n_head * (h.d_key + h.d_value))


def _result(h, r):
    """Bytes of a fused kernel's outputs: the result, the logarithms of sums, the random state."""
    if r.attention_kernel == "efficient":
        sums, seeds = SUM * 32 * ceil_div(r.length, 32), TWO_SEEDS
    else:
        sums, seeds = exact_bytes(r.dtype) * r.length, SEEDS
    return bytes_of_width(r, h.n_head * h.d_value) + r.batch * h.n_head * sums + seeds


def _repeated(h, r):
    """1 where keys and values are repeated for each query head; FlashAttention needs none of it."""
    return int(r.attention_kernel != "flash") * positive(h.n_head - h.n_kv_head)


def forward(h, r, hides=0) -> Timeline:
    """Return the timeline from queries, keys and values to the result and all that is saved.

    The caller keeps queries, keys and values. Under selective checkpointing only the result is
    left. `hides`: 1 where the caller has a mask, so that none is allocated here.
    """
    if r.recompute != "selective":
        return _computed(h, r, hides)
    computed = _computed(h, r, hides, keeps=0)
    freed = change(computed) - bytes_of_width(r, h.n_head * h.d_value)
    return [*computed, Allocation("checkpoint", 0, freed)]


def _computed(h, r, hides=0, keeps=1) -> Timeline:
    """To the result and what backward needs. With `keeps` 0 some of that is freed earlier."""
    if r.attention_kernel == "math":
        return _unfused(_bytes(h, r, hides), 1, keeps)
    allocated = _repeated(h, r) * _keys_and_values(r, h, h.n_head) + _result(h, r)
    return [Allocation("fused attention", allocated)]


def kept_inputs(h, r) -> tuple:
    """1 where backward reads the given queries, keys and values themselves, 0 where copies."""
    if r.attention_kernel == "math":
        return 0, 0, _bytes(h, r).values_given
    given = 1 - exchanges_context(r)
    few = given * (1 - _repeated(h, r))
    return given, few, few


def mask_of_window(r, hides):
    """Bytes of the mask of a window that hides some scores (`hides` 1)."""
    return hides * bytes_of(r.dtype) * r.length * r.length


def backward(h, r, hides=0) -> Timeline:
    """From the gradient of the result to those of queries, keys and values; `hides`: as forward."""
    if r.attention_kernel == "math":
        return _unfused_backward(h, _bytes(h, r, hides), r, mask_of_window(r, hides))
    repeated, selective = _repeated(h, r), int(r.recompute == "selective")
    queries, result = bytes_of_width(r, h.n_head * h.d_key), bytes_of_width(r, h.n_head * h.d_value)
    keys, values = (bytes_of_width(r, h.n_kv_head * width) for width in (h.d_key, h.d_value))
    keys_and_values = _keys_and_values(r, h, h.n_kv_head)
    gradients = (
        queries + repeated * _keys_and_values(r, h, h.n_head) + (1 - repeated) * keys_and_values
    )
    freed = result + saved_once_computed(h, r) + selective * repeated * keys_and_values
    freed += mask_of_window(r, hides)
    sums = [
        Allocation("value gradient summed over groups", values, result),
        Allocation("key gradient summed over groups", keys, queries),
    ]
    return [
        *times(selective, _computed(h, r)),
        Allocation("fused attention gradients", gradients, freed),
        *times(repeated, sums),
    ]


def _bytes(h, r, hides=0) -> SimpleNamespace:
    """Bytes of the tensors of the unfused kernel, and switches of what it copies."""
    size, exact, n = bytes_of(r.dtype), exact_bytes(r.dtype), tokens(r)
    n_score = r.batch * h.n_head * r.length * r.length
    half, repeated = int(size < exact), positive(h.n_head - h.n_kv_head)
    # A batched product needs each head of each sequence contiguous; other layouts are copied.
    split = apart(h, r) * positive(r.batch - 1)
    values, values_given = exact * n * h.n_head * h.d_value, (1 - half) * (1 - repeated)
    values_given *= 1 - split
    return SimpleNamespace(
        queries=exact * n * h.n_head * h.d_key,
        keys=exact * n * h.n_kv_head * h.d_key,
        queries_given=size * n * h.n_head * h.d_key,
        keys_given=size * n * h.n_kv_head * h.d_key,
        values=values,
        few_values=exact * n * h.n_kv_head * h.d_value,
        few_values_given=size * n * h.n_kv_head * h.d_value,
        values_kept=values + values_given * size * n * h.n_head * (h.d_stored - h.d_value),
        result=size * n * h.n_head * h.d_value,
        scores=exact * n_score,
        # A truth value for each score and each row, and a zero (`_safe_softmax`).
        infinite=n_score + r.batch * h.n_head * r.length + exact,
        scores_given=size * n_score,
        mask=(1 - hides) * positive(r.length - 1) * r.length * r.length,
        masked=positive(r.length - 1),
        exact=exact,
        half=half,
        repeated=repeated,
        result_apart=split,
        queries_apart=(1 - h.rope) * split,
        keys_apart=(1 - h.rope) * split * (1 - repeated),
        values_apart=split * (1 - repeated),
        values_given=values_given,
    )


def _unfused(b, whole, keeps=1) -> Timeline:
    """Attention as separate operations; the product with the values only if `whole`.

    With `keeps` 0 nothing is saved: keys and the softmax are freed once read. Torch composes the
    operations in C++, where every intermediate tensor lives to the end.
    """
    few = b.keys + b.few_values
    copies = b.half * (b.queries + few)
    mask = b.exact * b.mask
    kept_values = b.half * (1 - b.repeated) * (1 - b.values_apart) * b.few_values
    temporary = (
        copies
        - kept_values
        + b.queries_apart * b.queries
        + mask
        + b.repeated * b.queries
        + b.half * b.scores_given
    )
    masking = b.masked * b.scores
    repeats = b.repeated * (b.queries + b.values)
    per_head = (b.queries_apart + b.keys_apart) * b.queries
    return [
        Allocation("single-precision copies of query, key, value", copies),
        Allocation("scaled query", b.queries),
        Allocation("causal mask", mask),
        Allocation("repeated key and value", repeats),
        Allocation("scaled key", b.queries),
        Allocation("query and key contiguous per head", per_head),
        Allocation("scores", b.scores, (b.keys_apart + 1 - keeps) * b.queries),
        Allocation("masked scores", masking, masking),
        Allocation("softmax", b.scores),
        Allocation("scores and rows that are −∞", b.infinite, b.infinite + b.scores),
        Allocation("softmax in the run's dtype", b.half * b.scores_given),
        Allocation("value contiguous per head", b.values_apart * b.values),
        Allocation("weighted values", whole * b.values),
        Allocation(
            "result in the run's dtype",
            whole * b.half * b.result,
            temporary + whole * b.half * b.values,
        ),
    ]


def _unfused_backward(h, b, r, mask) -> Timeline:
    """Gradients of the separate operations, last first.

    Under selective checkpointing the recomputed tensors live next to the saved inputs, of which
    the values may be the same tensor, and to the window's mask (`mask` bytes).
    """
    selective = int(r.recompute == "selective")
    values = (1 - selective * b.values_given) * b.values_kept
    per_head = b.result_apart * b.values
    of_few = [
        Allocation("value gradient summed over groups", b.few_values, b.values),
        Allocation("key gradient summed over groups", b.keys, b.queries),
    ]
    to_half = [
        Allocation("value gradient in the run's dtype", b.few_values_given, b.few_values),
        Allocation("key gradient in the run's dtype", b.keys_given, b.keys),
    ]
    of_query = [Allocation("query gradient in the run's dtype", b.queries_given, b.queries)]
    freed = b.scores + 2 * b.queries + selective * (inputs(h, r) + mask)
    return [
        *times(b.half, [Allocation("result gradient in single precision", b.values, b.result)]),
        Allocation("result gradient contiguous per head", per_head, per_head),
        *(_unfused(b, 0) if selective else []),
        Allocation("value and softmax gradients", b.values + b.scores, b.values + values),
        Allocation("softmax gradient", 2 * b.scores, 3 * b.scores),
        Allocation("query and key gradients", 2 * b.queries, freed),
        Allocation("key gradient before the scale", b.queries, b.queries),
        *times(b.repeated, of_few),
        Allocation("query gradient before the scale", b.queries, b.queries),
        *times(b.half, to_half),
        *times(b.half, of_query),
    ]


def program(r):
    """Scores, softmax and weighted values, by the kernel of the run.

    Queries (batch, n_head, length, d_head), keys and values (batch, n_kv_head, length, d_head) to
    (batch, n_head, length, d_head of values); causal unless a bias is added to the scores
    or there is one query, if `causal` does not say it.
    """

    rotates = r.context_exchange == "ring"
    n_device = r.context_parallel
    ring = ring_blocks.Ring(n_device, index_of_device(r, n_device), rotates, r.backend)
    exchanges_blocks = r.context_parallel > 1 and r.context_exchange != "all_to_all"
    exchanges_heads = r.context_parallel > 1 and r.context_exchange == "all_to_all"

    def attend(q, k, v, bias=None, causal=None):
        if exchanges_blocks:
            return ring_blocks.attend(ring, q, k, v)
        if r.attention_kernel == "written_out":
            if bias is None:
                raise NoProgramError("attention_kernel: written_out without a mask of sequences")
            in_float32 = r.softmax_dtype == "float32" or r.autocast != "none"
            caps_scores = r.score_cap == "tanh"
            return kernels.written_out(q, k, v, bias, r.dropout, caps_scores, in_float32, r.backend)
        if causal is None:
            causal = bias is None and q.shape[2] > 1
        if is_efficient(bias) and q.shape[1] != k.shape[1]:
            k, v = kernels.repeated(q, k), kernels.repeated(q, v)
        return scaled_dot_product_attention(q, k, v, bias, causal)

    def is_efficient(bias):
        """Whether memory-efficient attention computes: FlashAttention takes no mask."""
        masked_flash = r.attention_kernel == "flash" and bias is not None
        return masked_flash or r.attention_kernel == "efficient"

    @operation(autocast="lower")
    def scaled_dot_product_attention(q, k, v, bias, causal):
        if r.attention_kernel == "math":
            if r.dropout and r.backend == "gpu":
                return kernels.math_with_dropout(q, k, v, bias, causal)
            return kernels.math(q, k, v, bias, causal, r.dropout)
        if is_efficient(bias):
            added = None if bias is None else kernels.bias_of_all_heads(bias, q, k)
            return kernels.efficient(q, k, v, added)
        if q.shape[3] != v.shape[3]:
            raise NoProgramError("attention_kernel: flash of values of another width than keys")
        return kernels.flash(q, k, v, r.backend)

    def forward(q, k, v, bias=None, causal=None):
        if r.recompute == "selective":
            return checkpoint(attend, q, k, v, bias)
        return attend(q, k, v, bias, causal)

    return exchanged_heads.around(forward, r.context_parallel) if exchanges_heads else forward
