"""Embedding and loss where each of several devices has a part of the vocabulary.

Source: torch/distributed/tensor/placement_types.py (`_MaskPartial`), _ops/_embedding_ops.py (the
gradient of rows that a device has is one of all rows), parallel/loss.py; for rows alone,
megatron/core/tensor_parallel/layers.py (`VocabParallelEmbedding`).
"""

from __future__ import annotations

from modelbudget.operations.autograd import finish_node, start_node, with_node
from modelbudget.operations.collectives import WholeGradient, all_reduce, summed
from modelbudget.operations.elementwise import compare
from modelbudget.operations.joining import embedding, sort_rows
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import Tensor, empty


def _masked(places: Tensor) -> tuple[Tensor, Tensor]:
    """Return where other devices have the rows, and places among this device's (`_mask_tensor`)."""
    shape = places.shape
    is_below, is_above = empty(shape, "bool"), empty(shape, "bool")
    is_elsewhere = empty(shape, "bool")
    del is_below, is_above
    copied = empty(shape, "int64")
    places_in_share = empty(shape, "int64")
    del copied
    zero = empty((), "int64")
    del zero
    return is_elsewhere, places_in_share


@operation
def rows_of_share(weight: Tensor, places: Tensor, n, dim: int | None) -> Tensor:
    """Return rows of a matrix that n devices divide: zeros where others have them, then the sum."""
    is_elsewhere, places_in_share = _masked(places)
    node = start_node("embedding", [weight], [places])
    y, n_taken = empty((*places.shape, *weight.shape[1:]), weight.dtype), places.numel()
    del places_in_share

    def gradients(saved, g):
        return _gradient_of_all_rows(weight, n, n_taken)

    finish_node(node, y, gradients)
    zero = empty((), weight.dtype)
    del zero, is_elsewhere
    return summed(y, n, dim)


@operation
def _gradient_of_all_rows(weight: Tensor, n, n_taken) -> Tensor:
    gradient, (n_rows, width) = WholeGradient(weight, n), weight.shape
    sort_rows(n_taken, (n * n_rows, width), weight.dtype)
    return gradient


@operation
def own_rows_of_share(weight: Tensor, places: Tensor, n, dim: int | None) -> Tensor:
    """Return the same; the gradient is of this device's rows."""
    is_below, is_above = empty(places.shape, "bool"), empty(places.shape, "bool")
    is_elsewhere = empty(places.shape, "bool")
    del is_below, is_above
    places_in_share = empty(places.shape, "int64")
    y = embedding(weight, places_in_share)
    mask = is_elsewhere
    y = with_node("masked_fill", y.detach(), [y], lambda saved, g: g.masked_fill(saved[0]), [mask])
    return summed(y, n, dim)


def cross_entropy_of_share(logits: Tensor, targets: Tensor, is_mean: bool) -> Tensor:
    """Return the loss of a share of the logits (tokens, n_vocab) and (tokens,): mean or sum."""
    return _nll_loss(_log_softmax(logits), targets, is_mean)


@operation
def _log_softmax(x: Tensor) -> Tensor:
    dtype = at_least_float32(x.dtype)
    wide = x.detach().to(dtype)
    row_shape = (*x.shape[:-1], 1)
    largest = empty(row_shape, dtype)
    largest = all_reduce(largest)
    shifted = empty(x.shape, dtype)
    powers = empty(x.shape, dtype)
    total = empty(row_shape, dtype)
    del powers
    total = all_reduce(total)
    logarithm = empty(row_shape, dtype)
    y = empty(x.shape, dtype)
    y = y.to(x.dtype)
    del wide, largest, shifted, total, logarithm
    return with_node("log_softmax", y, [x], lambda _, g: g, [y])


@operation
def _nll_loss(x: Tensor, targets: Tensor, is_mean: bool) -> Tensor:
    """Return the mean or sum of the losses (`_nll_loss_forward`)."""
    node = start_node("nll_loss", [x], [x, targets])
    safe = _where_known(targets, targets.dtype)
    is_elsewhere, places_in_share = _masked(safe)
    term = empty((*targets.shape, 1), x.dtype)
    zero = empty((), x.dtype)
    del zero, is_elsewhere
    of_target = all_reduce(term)
    losses = empty(targets.shape, x.dtype)
    losses = _where_known(targets, x.dtype)
    is_known = compare(targets)
    number = empty((), "int64")
    del is_known
    n_known = empty((), x.dtype)
    del number
    result = empty((), x.dtype)
    if is_mean:
        result = empty((), x.dtype)
    del safe, places_in_share, term, of_target, losses

    def gradients(saved, g):
        return _gradient_of_logits(saved, g, is_mean)

    return finish_node(node, result, gradients, [n_known])


def _where_known(targets: Tensor, dtype: str) -> Tensor:
    """torch.where(targets != ignore_index, …, 0)"""
    is_known = compare(targets)
    zero = empty((), dtype)
    return empty(is_known.shape, zero.dtype)


@operation
def _gradient_of_logits(saved: list[Tensor], g: Tensor, is_mean: bool) -> Tensor:
    """Return the gradient of the logits themselves (`_nll_loss_and_log_softmax_backward`)."""
    x, targets, _n_known = saved
    g = empty((), x.dtype) if is_mean else g
    safe = _where_known(targets, targets.dtype)
    gradient = empty(x.shape, x.dtype)
    is_elsewhere, _places = _masked(safe)
    mask = is_elsewhere.to(x.dtype)
    update = empty(mask.shape, x.dtype)
    del mask
    places = empty(targets.shape, "int64")
    of_each = _where_known(targets, x.dtype)
    del g
    powers = empty(x.shape, x.dtype)
    change = empty(x.shape, x.dtype)
    del powers
    return empty(x.shape, x.dtype)
