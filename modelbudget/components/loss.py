"""Cross-entropy over the logits of all tokens, as the run computes it."""

from modelbudget.architecture.formula_arguments import Run
from modelbudget.architecture.operations import largest, positive
from modelbudget.architecture.run_values import (
    INDEX,
    bytes_of,
    divides,
    exact_bytes,
    tokens,
)
from modelbudget.memory.timeline import Allocation, Timeline, times

SINGLE = 4
"""Bytes of a number in single precision."""
MASK = 1
"""Bytes of a truth value."""


def number(r: Run) -> int:
    """Bytes of a logit and of the loss, as far as the loss reads and makes them."""
    return exact_bytes(r.dtype) if r.loss_dtype == "float32" else bytes_of(r.dtype)


def _is_cast(r: Run) -> int:
    """1 where the loss reads a copy of the logits in another dtype."""
    return int(number(r) != bytes_of(r.dtype))


def saved(r: Run, n_rows):
    """Return the bytes saved for backward; `n_rows`: logits of a token.

    The log-probability of each token of the vocabulary at each position, the targets, and the
    number that their mean is divided by. In place, the softmax, a copy of the targets, and their
    mask.
    """
    other = MASK * tokens(r) if is_in_place(r) else number(r)
    return number(r) * tokens(r) * n_rows + targets(r) + other


def is_in_place(r: Run) -> int:
    """1 where the gradient of the logits is computed in the tensor that the loss reads."""
    return int(r.loss_kernel == "in_place")


def _is_apart(r: Run) -> int:
    """1 where the logits are another tensor than the one that the loss saves."""
    return 1 - is_in_place(r) * (1 - _is_cast(r))


def holds_gradient(r: Run):
    """1 where the caller holds the logits, and their gradient is written over them."""
    return int(r.outputs == "kept") * (1 - _is_apart(r))


def targets(r: Run):
    """Bytes of the targets. The shifted labels of one sequence are a view of one label more."""
    one_sequence = 1 - positive(r.batch - 1)
    return INDEX * (tokens(r) + int(r.targets == "shifted") * one_sequence)


def held(r: Run, n_rows):
    """Return the bytes that are live when backward begins and that no operation saves.

    The loss; labels of which the targets are a copy; logits that the forward pass has returned.
    """
    labels = (int(r.targets == "shifted") + is_in_place(r)) * INDEX * tokens(r)
    kept = int(r.outputs == "kept") * _is_apart(r)
    return number(r) + labels + kept * _logits(r, n_rows)


def forward(r: Run, n_rows):
    """Return the bytes that are live at the end of forward, and freed before backward begins.

    The logits, their copy in single precision, the labels with one of padding, the summed loss. In
    place, three numbers of each token: the logit of its target, the sum of the exponentials, and
    its loss; and its index.
    """
    if is_in_place(r):
        freed = _is_cast(r) * int(r.outputs == "freed")
        return freed * _logits(r, n_rows) + INDEX * tokens(r) + number(r) * (3 * tokens(r) - 1)
    cast, shifted = _is_cast(r), int(r.targets == "shifted")
    kept = int(r.outputs == "kept")
    padded = positive(r.batch - 1) * INDEX * (tokens(r) + r.batch)
    return (
        (1 - kept) * _logits(r, n_rows)
        + cast * number(r) * tokens(r) * n_rows
        + shifted * (padded + number(r))
        + divides(r) * _divided_forward(r, n_rows)
    )


def _divided_forward(r: Run, n_rows):
    """Return the bytes that only the loss over a device's share of the logits needs, at its peak.

    In `_log_softmax` the logits less their maximum, and for half precision they themselves and the
    result in single precision, and three numbers of each token; later, in `_nll_loss_forward`, the
    targets twice and four numbers of each token (torch 2.13, tensor/parallel/loss.py).
    """
    n, exact = tokens(r), max(SINGLE, number(r))
    is_half = int(number(r) < exact)
    softmax = (1 + 2 * is_half) * exact * n * n_rows + 3 * exact * n
    of_targets = (2 * INDEX + 1 + 4 * number(r)) * n + number(r)
    return largest(softmax, of_targets) - 2 * number(r)


def logits(r: Run, n_rows):
    """Return the bytes live when the logits are there and nothing of the loss is.

    In addition to those live when backward begins.
    """
    kept, copied = int(r.outputs == "kept") * _is_apart(r), is_in_place(r)
    labels = (int(r.targets == "shifted") + copied) * targets(r)
    others = number(r) + MASK * tokens(r) if copied else 2 * number(r)
    of_loss = number(r) * tokens(r) * n_rows + others + labels
    return (1 - kept) * _logits(r, n_rows) - of_loss


def backward(r: Run, n_rows) -> Timeline:
    """Return the timeline to the gradient of the logits.

    It needs two tensors of the size of the saved log-probabilities besides these: their gradient,
    and that of the logits. A copy of the targets is freed between them. In place, only two numbers
    of each token and its index are needed, and a copy in the dtype of the logits.
    """
    if is_in_place(r):
        return _backward_in_place(r, n_rows)
    wide, cast = number(r) * tokens(r) * n_rows, _is_cast(r)
    shifted = int(r.targets == "shifted")
    in_dtype = [Allocation("logits gradient in the run's dtype", _logits(r, n_rows), wide)]
    mean = [
        Allocation("gradient of the mean", 2 * number(r)),
        Allocation("log-probability gradient", wide, 2 * number(r) + targets(r)),
        Allocation("logits gradient", wide, 2 * wide),
    ]
    # Of a device's share: also the targets twice, numbers of the tokens, and the loss's gradient.
    more = divides(r) * (wide + (3 * INDEX + 1 + 2 * number(r)) * tokens(r) + number(r))
    return [
        *times(shifted, mean),
        *times(1 - shifted, [Allocation("loss gradients", 2 * wide + more, 2 * wide + more)]),
        *times(cast, in_dtype),
    ]


def _backward_in_place(r: Run, n_rows) -> Timeline:
    """Return the timeline of the gradient in place of the softmax."""
    per_token, n = number(r) * tokens(r), tokens(r)
    freed, temporary = (MASK + INDEX) * n, 2 * per_token + INDEX * n
    in_dtype = _logits(r, n_rows), per_token * n_rows + freed
    return [
        Allocation("gradient of the mean", number(r) + per_token),
        Allocation("1 less for each target", temporary, temporary + per_token),
        *times(_is_cast(r), [Allocation("logits gradient in the run's dtype", *in_dtype)]),
        *times(1 - _is_cast(r), [Allocation("logits gradient", 0, freed)]),
    ]


def _logits(r: Run, n_rows):
    return bytes_of(r.dtype) * tokens(r) * n_rows
