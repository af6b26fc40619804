"""Kernels of attention over queries, keys and values (batch, heads, length, d_head).

`flash` and `efficient` never write the scores; `math` is torch's composition; `written_out` is
one operation after the other, as eager attention of transformers.

Source: aten/src/ATen/native/transformers/attention.cpp and cuda/attention.cu; FLOPs of a fused
backward pass, which computes the scores again: torch/utils/flop_counter.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from modelbudget.operations.autograd import finish_node, result_of, start_node, with_node
from modelbudget.operations.elementwise import compare, dropout
from modelbudget.operations.joining import pad
from modelbudget.operations.memory_layout import at_least_float32, empty_like
from modelbudget.operations.operation import operation
from modelbudget.operations.reductions import safe_softmax, softmax
from modelbudget.operations.tape import Active, Tensor, empty, view_of
from modelbudget.operations.views import repeat_interleave


@operation
def flash(q: Tensor, k: Tensor, v: Tensor, backend: str = "gpu") -> Tensor:
    """Save queries, keys, values, the result, and the logarithm of each query's sum."""
    node = start_node("flash", [q, k, v], [q, k, v])
    y, *for_backward = result_of("attention", lambda: flash_results(q, k, v, backend))

    def gradients(saved, g):
        q, k, v, *_ = saved
        return flash_gradients(q, k, v, backend)

    return finish_node(node, y, gradients, [y, *for_backward])


def flash_results(q: Tensor, k: Tensor, v: Tensor, backend: str) -> list[Tensor]:
    """Return the result, the logarithms of sums, and the random state of a GPU.

    A CPU has no random numbers; its sums are laid out by token.
    """
    batch, n_head, length, _ = q.shape
    Active.tape.count_flops(_flops(q, k, v)[0])
    y = empty_like(q)
    if backend == "cpu":
        sums = empty((batch, length, n_head), at_least_float32(q.dtype))
        return [y, view_of(sums, q.shape[:3], (sums.strides[0], 1, n_head))]
    logsumexp = empty((batch, n_head, length), "float32")
    return [y, logsumexp, empty((2,), "int64"), empty((), "int64")]


def flash_gradients(q: Tensor, k: Tensor, v: Tensor, backend: str) -> Sequence[Tensor]:
    """Return the gradients of queries, keys and values; those of a CPU are laid out by token."""
    Active.tape.count_flops(_flops(q, k, v)[1])
    if backend == "cpu":
        return _gradients_by_token((q.shape, k.shape, v.shape), q.dtype)
    return flash_backward(q, k, v)


def _flops(q: Tensor, k: Tensor, v: Tensor) -> tuple:
    """Return the FLOPs of a fused forward pass (two products) and backward pass (five)."""
    batch, n_head, length, d_head = q.shape
    n_pair = 2 * batch * n_head * length * k.shape[2]
    return n_pair * (d_head + v.shape[3]), n_pair * (3 * d_head + 2 * v.shape[3])


@operation
def flash_backward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return empty_like(q), empty_like(k), empty_like(v)


@operation
def efficient(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """As flash; the sums are padded to 32 queries, and exist only if backward needs them.

    A bias (batch, n_head, length, n_key) is added to the scores. It is saved; the rows of its
    gradient are padded to 16.
    """
    batch, n_head, length, _ = q.shape
    node = start_node("efficient", [q, k, v, bias], [q, k, v, bias])
    wants_bias = bias is not None and bias.needs_gradient
    forward, backward = _flops(q, k, v)
    keeps_sums = node is not None and any(x.needs_gradient for x in (q, k, v))
    padded = 32 * -(-length // 32) if keeps_sums else 0

    def results():
        Active.tape.count_flops(forward)
        y = empty((batch, length, n_head, v.shape[3]), q.dtype).transpose(1, 2)
        logsumexp = empty((batch, n_head, padded), "float32")
        return [y, logsumexp, empty((), "int64"), empty((), "int64")]

    y, *for_backward = result_of("attention", results)
    shapes, q_shape, n_key = (q.shape, k.shape, v.shape), q.shape, k.shape[2]

    def gradients(saved, g):
        dtype = saved[0].dtype
        Active.tape.count_flops(backward)
        of_inputs = _gradients_by_token(shapes, dtype)
        return *of_inputs, _gradient_of_bias(q_shape, n_key, dtype) if wants_bias else None

    return finish_node(node, y, gradients, [y, *for_backward])


def _gradient_of_bias(q_shape, n_key, dtype: str) -> Tensor:
    rows = empty((*q_shape[:3], 16 * -(-n_key // 16)), dtype)
    return view_of(rows, (*q_shape[:3], n_key), rows.strides)


def bias_of_all_heads(bias: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Make a bias as the efficient kernel wants it.

    Truth values become numbers (`convert_boolean_attn_mask`), and rows are padded to a multiple of
    8 (`preprocess_mask`).
    """
    if bias.dtype == "bool":
        bias = zero_where(bias, q.dtype)
    n_key = bias.shape[-1]
    if bias.strides[-1] != 1 or any(step % 8 for step in bias.strides[:-1]):
        padded = pad(bias, (*bias.shape[:-1], n_key + 8 - n_key % 8))
        bias = padded.narrow(-1, n_key)
        del padded
    return bias.expand((*q.shape[:-1], k.shape[2]))


def zero_where(is_seen: Tensor, dtype: str) -> Tensor:
    """torch.where(is_seen, 0, −∞): the number becomes a tensor without dimensions."""
    infinity = empty((), dtype)
    return empty(is_seen.shape, dtype)


@operation
def _gradients_by_token(shapes, dtype: str) -> list[Tensor]:
    return [
        empty((batch, length, n_head, d_head), dtype).transpose(1, 2)
        for batch, n_head, length, d_head in shapes
    ]


def math(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    causal: bool = True,
    has_dropout: bool = False,
):
    """Compute `_scaled_dot_product_attention_math`, whose C++ variables live to its end.

    Its dropout is that of a CPU; a GPU's is in `math_with_dropout`.
    """
    dtype, precise = q.dtype, at_least_float32(q.dtype)
    q_exact, k_exact, v_exact = q.to(precise), k.to(precise), v.to(precise)
    q_scaled = q_exact * 1.0
    if causal:
        bias = causal_bias(q.shape[2], k.shape[2], precise)
    if _is_grouped(q, k):
        k_all, v_all = repeated(q_scaled, k_exact), repeated(q_scaled, v_exact)
    else:
        k_all, v_all = k_exact, v_exact
    scores = q_scaled @ (k_all.transpose(-2, -1) * 1.0)
    if bias is not None:
        scores = scores + bias  # in place, unless a tracer watches
    scores = safe_softmax(scores)
    scores = dropout(scores, has_dropout, "cpu")
    probabilities = scores.to(dtype)  # returned too; C++ evaluates the last argument first
    result = scores @ v_all
    return result.to(dtype)


def _is_grouped(q: Tensor, k: Tensor) -> bool:
    return q.shape[1] is not k.shape[1] and q.shape[1] != k.shape[1]


def math_with_dropout(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, causal=True):
    """Compute the same in Python with a GPU's dropout: each result is freed after its last use."""
    dtype, precise = q.dtype, at_least_float32(q.dtype)
    q, k, v = q.to(precise), k.to(precise), v.to(precise)
    q = q * 1.0
    if causal:
        is_seen = _lower_triangle(q.shape[2], k.shape[2])
        zeros = empty(is_seen.shape, precise)
        is_hidden = compare(is_seen)
        del is_hidden
        bias = zeros
    if _is_grouped(q, k):
        k, v = repeated(q, k), repeated(q, v)
    scores = q @ (k.transpose(-2, -1) * 1.0)
    if bias is not None:
        scores = _added_in_place(scores, bias)
    probabilities = dropout(safe_softmax(scores))
    return (probabilities @ v).to(dtype)


def _added_in_place(x: Tensor, y: Tensor) -> Tensor:
    return with_node("add_", view_of(x, x.shape, x.strides), [x, y], lambda _, g: (g, g))


def _lower_triangle(n, m) -> Tensor:
    ones = empty((n, m), "bool")
    triangle = empty((n, m), "bool")
    del ones
    return triangle


@operation
def causal_bias(n, m, dtype: str) -> Tensor:
    """Return 0 on and below the diagonal and −∞ above, in the dtype of the scores."""
    is_seen = _lower_triangle(n, m)
    zero, infinity = empty((), dtype), empty((), dtype)
    return empty((n, m), dtype)


def repeated(q: Tensor, x: Tensor) -> Tensor:
    """Repeat keys or values for each query head."""
    return repeat_interleave(x, q.shape[1] // x.shape[1], 1)


def written_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    has_dropout: bool = False,
    caps_scores: bool = False,
    softmax_in_float32: bool = True,
    backend: str = "gpu",
) -> Tensor:
    """Compute attention one operation at a time, as eager attention of transformers does."""
    if _is_grouped(q, k):
        k, v = _repeated_as_view(q, k), _repeated_as_view(q, v)
    scores = (q @ k.transpose(-2, -1)) * 1.0
    if caps_scores:
        scores = scores / 50.0
        scores = scores.tanh()
        scores = scores * 50.0
    scores = scores + mask
    dtype = at_least_float32(q.dtype) if softmax_in_float32 else q.dtype
    scores = softmax(scores, dtype).to(q.dtype)
    scores = dropout(scores, has_dropout, backend)
    result = scores @ v
    return result.transpose(1, 2).contiguous().transpose(1, 2)


def _repeated_as_view(q: Tensor, x: Tensor) -> Tensor:
    """Repeat keys or values for each query head (`repeat_kv`): a copy where reshape needs one."""
    group = q.shape[1] // x.shape[1]
    y = x.unsqueeze(2)
    return y.expand((y.shape[0], y.shape[1], group, *y.shape[3:])).flatten(1, 2)
