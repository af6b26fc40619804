"""The core of attention: what each query finds among the keys.

Written out (math), it computes in at least single precision, from copies of queries, keys and
values where these are in half; flash attention never holds a score.
"""

from types import SimpleNamespace

from modelbudget.components.nodes import Node, times
from modelbudget.operations import ceil_div, positive
from modelbudget.run import bytes_of, exact_bytes, mask_bytes, tokens

SEEDS = 24
"""Bytes of the random state that a GPU's flash attention keeps, with dropout or without."""
TWO_SEEDS = 16
"""The same of memory-efficient attention."""
SUM = 4
"""Bytes of the logarithm of a row's sum, there."""


def inputs(a, r):
    """Bytes of queries, keys and values."""
    return bytes_of(r.dtype) * tokens(r) * (a.n_head + 2 * a.n_kv_head) * a.d_head


def saved(a, r):
    """Bytes that backward needs; only the inputs, where the core is computed again."""
    if r.recompute == "selective":
        return inputs(a, r)
    return kept(a, r)


def kept(a, r):
    """Bytes that backward needs when the core has been computed.

    Math: queries, keys and values, the last two repeated for each query head, and the softmax of
    the scores, length² for each head; with dropout, what is left of the softmax and what was
    dropped. Flash: queries, keys, values, the result, and the logarithm of each row's sum (Dao et
    al. 2022, §3.1): scores are computed again in the backward pass, and with them what is dropped.
    Efficient: as flash (Rabe & Staats 2021, §3), with keys and values repeated for each query head,
    and rows padded to a multiple of 32.
    """
    if r.attention == "math":
        b = _bytes(a, r)
        return 3 * b.heads + b.scores + r.dropout * (b.scores + b.dropped)
    return _heads(a, r, a.n_head) + 2 * _heads(a, r, _read(a, r)) + _result(a, r)


def _heads(a, r, n_head):
    return bytes_of(r.dtype) * tokens(r) * n_head * a.d_head


def _read(a, r):
    """Heads of the keys and values that a fused kernel reads."""
    return a.n_head if r.attention == "efficient" else a.n_kv_head


def _result(a, r):
    """What a fused kernel makes: the result, the logarithms of sums, the random state."""
    if r.attention == "efficient":
        sums, seeds = SUM * 32 * ceil_div(r.length, 32), TWO_SEEDS
    else:
        sums, seeds = exact_bytes(r.dtype) * r.length, int(r.kernels == "gpu") * SEEDS
    return _heads(a, r, a.n_head) + r.batch * a.n_head * sums + seeds


def _repeated(a, r):
    """1 where keys and values are repeated for each query head."""
    return positive(_read(a, r) - a.n_kv_head)


def forward(a, r, hides=0) -> list[Node]:
    """From queries, keys and values, which their owner keeps, to what backward needs beside them,
    and the result. `hides`: 1 where the owner has a mask, so that none is made.
    """
    if r.attention == "math":
        return _written_out(_bytes(a, r, hides), r, 1)
    return [(_repeated(a, r) * 2 * _heads(a, r, a.n_head) + _result(a, r), 0)]


def kept_of_given(a, r) -> tuple:
    """1 where backward reads the given queries, keys and values themselves, 0 where copies."""
    if r.attention == "math":
        return 0, 0, _bytes(a, r).values_given
    return 1, 1 - _repeated(a, r), 1 - _repeated(a, r)


def backward(a, r) -> list[Node]:
    """From the gradient of the result to those of queries, keys and values."""
    if r.attention == "math":
        return _back_through_scores(a, _bytes(a, r), r)
    query, key = _heads(a, r, a.n_head), _heads(a, r, a.n_kv_head)
    repeated, selective = _repeated(a, r), int(r.recompute == "selective")
    read = query + 2 * _heads(a, r, _read(a, r))
    given = selective * repeated * 2 * key
    return [
        *times(selective, forward(a, r)),
        (read, query + kept(a, r) + given),
        *times(repeated, [(key, query)] * 2),
    ]


def _bytes(a, r, hides=0) -> SimpleNamespace:
    """Bytes of what math holds, and switches of what it copies."""
    size, exact, n = bytes_of(r.dtype), exact_bytes(r.dtype), tokens(r)
    n_score = r.batch * a.n_head * r.length * r.length
    half, repeated = int(size < exact), positive(a.n_head - a.n_kv_head)
    # A product wants each head of each sequence by itself. Tensors that lie token by token are
    # copied; rotation leaves queries and keys head by head.
    apart = positive(a.n_head - 1) * positive(r.length - 1) * positive(r.batch - 1)
    turned = int(a.position == "rotary")
    return SimpleNamespace(
        heads=exact * n * a.n_head * a.d_head,
        keys=exact * n * a.n_kv_head * a.d_head,
        result=size * n * a.n_head * a.d_head,
        keys_given=size * n * a.n_kv_head * a.d_head,
        scores=exact * n_score,
        scores_given=size * n_score,
        dropped=mask_bytes(r.kernels, exact) * n_score,
        mask=(1 - hides) * positive(r.length - 1) * r.length * r.length,
        masked=positive(r.length - 1),
        exact=exact,
        half=half,
        repeated=repeated,
        result_apart=apart,
        queries_apart=(1 - turned) * apart,
        keys_apart=(1 - turned) * apart * (1 - repeated),
        values_apart=apart * (1 - repeated),
        values_given=(1 - half) * (1 - repeated) * (1 - apart),
        by_hand=r.dropout * int(r.kernels == "gpu"),
    )


def _written_out(b, r, whole) -> list[Node]:
    """Copies in higher precision; scaled queries; the mask; keys and values repeated; scaled keys;
    copies head by head; scores; masked scores; their softmax; dropout; values head by head; and,
    if `whole`, the result.

    Torch composes it in C++, where what is computed lives until all is; with a GPU's dropout it is
    told by hand, in Python.
    """
    by_torch = 1 - b.by_hand
    copies = b.half * (b.heads + 2 * b.keys)
    seen = b.by_hand * b.mask
    mask = b.exact * b.mask
    kept_values = b.half * (1 - b.repeated) * (1 - b.values_apart) * b.keys
    temporary = (
        copies
        - kept_values
        - b.by_hand * b.half * (b.heads + b.repeated * 2 * b.keys)
        + b.queries_apart * b.heads
        + seen
        + mask
        + b.repeated * b.heads
        + by_torch * b.half * b.scores_given
        + b.by_hand * b.scores
    )
    return [
        (copies, 0),
        (b.heads, b.by_hand * b.half * b.heads),
        (seen + mask, 0),
        (b.repeated * 2 * b.heads, b.by_hand * b.half * b.repeated * 2 * b.keys),
        (b.heads, 0),
        ((b.queries_apart + b.keys_apart) * b.heads, 0),
        (b.scores, b.keys_apart * b.heads),
        (by_torch * b.masked * b.scores, by_torch * b.masked * b.scores),
        (b.scores, by_torch * b.scores),
        (r.dropout * (b.scores + b.dropped), 0),
        (by_torch * b.half * b.scores_given, 0),
        (b.values_apart * b.heads, 0),
        (whole * b.heads, 0),
        (whole * b.half * b.result, temporary + whole * b.half * b.heads),
    ]


def _back_through_scores(a, b, r) -> list[Node]:
    """The result's precision; its copy head by head; scores by values; dropout; softmax; queries by
    keys; the scale of keys; repeated values and keys; the scale of queries; precision.

    What was computed again lives beside the inputs, of which values may be one and the same.
    """
    selective = int(r.recompute == "selective")
    values = (1 - selective * b.values_given) * b.heads
    return [
        *times(b.half, [(b.heads, b.result)]),
        (b.result_apart * b.heads, b.result_apart * b.heads),
        *(_written_out(b, r, 0) if selective else []),
        (b.heads + b.scores, b.heads + values + r.dropout * b.scores),
        (r.dropout * b.scores, r.dropout * (b.scores + b.dropped)),
        (b.scores, 2 * b.scores),
        (2 * b.heads, b.scores + 2 * b.heads + selective * inputs(a, r)),
        (b.heads, b.heads),
        *times(b.repeated, [(b.keys, b.heads), (b.keys, b.heads)]),
        (b.heads, b.heads),
        *times(b.half, [(b.keys_given, b.keys)] * 2),
        *times(b.half, [(b.result, b.heads)]),
    ]
