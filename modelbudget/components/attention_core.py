"""The core of attention: what each query finds among the keys.

Written out (math), it computes in at least single precision, from copies of queries, keys and
values where these are in half; flash attention never holds a score.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

from modelbudget.architecture.operations import ceil_div, positive
from modelbudget.architecture.run_config import bytes_of, exact_bytes, mask_bytes, tokens
from modelbudget.memory.timeline import Node, change, times

SEEDS = 24
"""Bytes of the random state that a GPU's flash attention keeps, with dropout or without."""
TWO_SEEDS = 16
"""The same of memory-efficient attention."""
SUM = 4
"""Bytes of the logarithm of a row's sum, there."""


class Heads(NamedTuple):
    """What the core is given. Rotated queries and keys lie head by head (`turned` 1), others token
    by token.
    """

    n_head: Any
    n_kv_head: Any
    d_key: Any
    """Channels of a query and of a key."""
    d_value: Any
    d_stored: Any
    """Channels that lie in memory where those of a value do, the value's own among them."""
    turned: int


def inputs(h, r):
    """Bytes of queries, keys and values."""
    width = (h.n_head + h.n_kv_head) * h.d_key + h.n_kv_head * h.d_stored
    return bytes_of(r.dtype) * tokens(r) * width


def saved(h, r):
    """Bytes that backward needs; only the inputs, where the core is computed again."""
    if r.recompute == "selective":
        return inputs(h, r)
    return kept(h, r)


def kept(h, r):
    """Bytes that backward needs when the core has been computed.

    Math: queries, keys and values, the last two repeated for each query head, and the softmax of
    the scores, length² for each head; with dropout, what is left of the softmax and what was
    dropped. Flash: queries, keys, values, the result, and the logarithm of each row's sum (Dao et
    al. 2022, §3.1): scores are computed again in the backward pass, and with them what is dropped.
    Efficient: as flash (Rabe & Staats 2021, §3), with keys and values repeated for each query head,
    and rows padded to a multiple of 32.
    """
    if r.attention_kernel == "math":
        b = _bytes(h, r)
        return 2 * b.queries + b.values_kept + b.scores + r.dropout * (b.scores + b.dropped)
    repeated = _repeated(h, r)
    return inputs(h, r) + repeated * (_all(h, r) - _given(h, r)) + _result(h, r)


def copied_result(h, r):
    """Bytes of the result that an output projection keeps: it reads a copy, unless the result lies
    token by token. A core that is computed again keeps none, so that the projection keeps it, copy
    or not.
    """
    kept_by_core = int(r.attention_kernel != "math" and r.recompute != "selective")
    return (1 - kept_by_core * (1 - result_apart(h, r))) * _heads(r, h.n_head * h.d_value)


def result_apart(h, r):
    """1 where the result lies head by head. Flash attention's takes the order in memory of its
    queries; memory-efficient attention writes token by token. One sequence of heads of one channel
    is read as it lies.
    """
    by_head = {"math": 1, "flash": h.turned, "efficient": 0}[r.attention_kernel]
    return by_head * apart(h, r) * positive(r.batch * h.d_value - 1)


def apart(h, r):
    """1 where head by head is another order in memory than token by token."""
    return positive(h.n_head - 1) * positive(r.length - 1)


def _heads(r, width):
    return bytes_of(r.dtype) * tokens(r) * width


def _given(h, r):
    """Keys and values."""
    return _heads(r, h.n_kv_head * (h.d_key + h.d_value))


def _all(h, r):
    """The same, one for each query head."""
    return _heads(r, h.n_head * (h.d_key + h.d_value))


def _result(h, r):
    """What a fused kernel makes: the result, the logarithms of sums, the random state."""
    if r.attention_kernel == "efficient":
        sums, seeds = SUM * 32 * ceil_div(r.length, 32), TWO_SEEDS
    else:
        sums, seeds = exact_bytes(r.dtype) * r.length, int(r.backend == "gpu") * SEEDS
    return _heads(r, h.n_head * h.d_value) + r.batch * h.n_head * sums + seeds


def _repeated(h, r):
    """1 where keys and values are repeated for each query head; flash attention knows groups."""
    return int(r.attention_kernel != "flash") * positive(h.n_head - h.n_kv_head)


def forward(h, r, hides=0) -> list[Node]:
    """From queries, keys and values, which their owner keeps, to what backward needs beside them,
    and the result; to the result alone, where the core is computed again. `hides`: 1 where the
    owner has a mask, so that none is made.
    """
    if r.recompute != "selective":
        return _computed(h, r, hides)
    nodes = _computed(h, r, hides, keeps=0)
    return [*nodes, (0, change(nodes) - _heads(r, h.n_head * h.d_value))]


def _computed(h, r, hides=0, keeps=1) -> list[Node]:
    """To what backward needs, and the result. Where it `keeps` (0) nothing, some goes earlier."""
    if r.attention_kernel == "math":
        return _written_out(_bytes(h, r, hides), r, 1, keeps)
    return [(_repeated(h, r) * _all(h, r) + _result(h, r), 0)]


def kept_of_given(h, r) -> tuple:
    """1 where backward reads the given queries, keys and values themselves, 0 where copies."""
    if r.attention_kernel == "math":
        return 0, 0, _bytes(h, r).values_given
    return 1, 1 - _repeated(h, r), 1 - _repeated(h, r)


def owned_mask(r, hides):
    """Bytes of the mask of a window that `hides` some scores (1) or none."""
    return hides * bytes_of(r.dtype) * r.length * r.length


def backward(h, r, hides=0) -> list[Node]:
    """From the gradient of the result to those of queries, keys and values; `hides`: as forward."""
    if r.attention_kernel == "math":
        return _back_through_scores(h, _bytes(h, r, hides), r, owned_mask(r, hides))
    repeated, selective = _repeated(h, r), int(r.recompute == "selective")
    queries, result = _heads(r, h.n_head * h.d_key), _heads(r, h.n_head * h.d_value)
    keys, values = (_heads(r, h.n_kv_head * width) for width in (h.d_key, h.d_value))
    gradients = queries + repeated * _all(h, r) + (1 - repeated) * _given(h, r)
    given = selective * repeated * _given(h, r)
    return [
        *times(selective, _computed(h, r)),
        (gradients, result + kept(h, r) + given),
        *times(repeated, [(values, result), (keys, queries)]),
    ]


def _bytes(h, r, hides=0) -> SimpleNamespace:
    """Bytes of what math holds, and switches of what it copies."""
    size, exact, n = bytes_of(r.dtype), exact_bytes(r.dtype), tokens(r)
    n_score = r.batch * h.n_head * r.length * r.length
    half, repeated = int(size < exact), positive(h.n_head - h.n_kv_head)
    # A product wants each head of each sequence by itself. Tensors that lie token by token are
    # copied.
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
        scores_given=size * n_score,
        dropped=mask_bytes(r.backend, exact) * n_score,
        mask=(1 - hides) * positive(r.length - 1) * r.length * r.length,
        masked=positive(r.length - 1),
        exact=exact,
        half=half,
        repeated=repeated,
        result_apart=split,
        queries_apart=(1 - h.turned) * split,
        keys_apart=(1 - h.turned) * split * (1 - repeated),
        values_apart=split * (1 - repeated),
        values_given=values_given,
        by_hand=r.dropout * int(r.backend == "gpu"),
    )


def _written_out(b, r, whole, keeps=1) -> list[Node]:
    """Copies in higher precision; scaled queries; the mask; keys and values repeated; scaled keys;
    copies head by head; scores; masked scores; their softmax; dropout; values head by head; and,
    if `whole`, the result.

    What backward would need goes, where nothing is kept (`keeps` 0), when it has been read: keys,
    the softmax and what was dropped.

    Torch composes it in C++, where what is computed lives until all is; with a GPU's dropout it is
    told by hand, in Python.
    """
    by_torch = 1 - b.by_hand
    few = b.keys + b.few_values
    copies = b.half * (b.queries + few)
    seen = b.by_hand * b.mask
    mask = b.exact * b.mask
    kept_values = b.half * (1 - b.repeated) * (1 - b.values_apart) * b.few_values
    temporary = (
        copies
        - kept_values
        - b.by_hand * b.half * (b.queries + b.repeated * few)
        + b.queries_apart * b.queries
        + seen
        + mask
        + b.repeated * b.queries
        + by_torch * b.half * b.scores_given
        + b.by_hand * b.scores
    )
    return [
        (copies, 0),
        (b.queries, b.by_hand * b.half * b.queries),
        (seen + mask, 0),
        (b.repeated * (b.queries + b.values), b.by_hand * b.half * b.repeated * few),
        (b.queries, 0),
        ((b.queries_apart + b.keys_apart) * b.queries, 0),
        (b.scores, (b.keys_apart + 1 - keeps) * b.queries),
        (by_torch * b.masked * b.scores, by_torch * b.masked * b.scores),
        (b.scores, by_torch * b.scores),
        (r.dropout * (b.scores + b.dropped), (1 - keeps) * r.dropout * (b.scores + b.dropped)),
        (by_torch * b.half * b.scores_given, 0),
        (b.values_apart * b.values, 0),
        (whole * b.values, 0),
        (whole * b.half * b.result, temporary + whole * b.half * b.values),
    ]


def _back_through_scores(h, b, r, mask) -> list[Node]:
    """The result's precision; its copy head by head; scores by values; dropout; softmax; queries by
    keys; the scale of keys; repeated values and keys; the scale of queries; precision.

    What was computed again lives beside the inputs, of which values may be one and the same, and
    the owner's mask.
    """
    selective = int(r.recompute == "selective")
    values = (1 - selective * b.values_given) * b.values_kept
    return [
        *times(b.half, [(b.values, b.result)]),
        (b.result_apart * b.values, b.result_apart * b.values),
        *(_written_out(b, r, 0) if selective else []),
        (b.values + b.scores, b.values + values + r.dropout * b.scores),
        (r.dropout * b.scores, r.dropout * (b.scores + b.dropped)),
        (b.scores, 2 * b.scores),
        (2 * b.queries, b.scores + 2 * b.queries + selective * (inputs(h, r) + mask)),
        (b.queries, b.queries),
        *times(b.repeated, [(b.few_values, b.values), (b.keys, b.queries)]),
        (b.queries, b.queries),
        *times(b.half, [(b.few_values_given, b.few_values), (b.keys_given, b.keys)]),
        *times(b.half, [(b.queries_given, b.queries)]),
    ]
