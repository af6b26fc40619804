"""Cross-entropy over the logits of all tokens, as the run computes it."""

from modelbudget.architecture.arithmetic import largest, positive
from modelbudget.architecture.formula_arguments import Run
from modelbudget.architecture.run_values import INDEX, bytes_of, divides, exact_bytes, tokens
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
    number that their mean is divided by.
    """
    return number(r) * tokens(r) * n_rows + targets(r) + number(r)


def targets(r: Run):
    """Bytes of the targets. The shifted labels of one sequence are a view of one label more."""
    one_sequence = 1 - positive(r.batch - 1)
    return INDEX * (tokens(r) + int(r.targets == "shifted") * one_sequence)


def unsaved(r: Run, n_rows):
    """Return the bytes that are live when backward begins and that no operation saves.

    The loss; labels of which the targets are a copy; logits that the forward pass has returned.
    """
    labels = int(r.targets == "shifted") * INDEX * tokens(r)
    return number(r) + labels + int(r.outputs == "kept") * _logits(r, n_rows)


def forward(r: Run, n_rows):
    """Return the bytes that are live at the end of forward, and freed before backward begins.

    The logits, their copy in single precision, the labels with one of padding, the summed loss.
    """
    cast, shifted = _is_cast(r), int(r.targets == "shifted")
    padded = positive(r.batch - 1) * INDEX * (tokens(r) + r.batch)
    return (
        int(r.outputs == "freed") * _logits(r, n_rows)
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
    labels = int(r.targets == "shifted") * targets(r)
    of_loss = number(r) * tokens(r) * n_rows + 2 * number(r) + labels
    return int(r.outputs == "freed") * _logits(r, n_rows) - of_loss


def backward(r: Run, n_rows) -> Timeline:
    """Return the timeline to the gradient of the logits.

    It needs two tensors of the size of the saved log-probabilities besides these: their gradient,
    and that of the logits. A copy of the targets is freed between them.
    """
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


def _logits(r: Run, n_rows):
    return bytes_of(r.dtype) * tokens(r) * n_rows
