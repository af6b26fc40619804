"""Cross-entropy: torch's, of logarithms of probabilities; and Megatron-Core's, in place.

Source: aten/src/ATen/native/LossNLL.cpp; megatron/core/tensor_parallel/cross_entropy.py.
"""

from __future__ import annotations

from modelbudget.operations.autograd import finish_function, finish_node, start_node
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.operation import operation
from modelbudget.operations.reductions import log_softmax_in_dtype
from modelbudget.operations.tape import Tensor, empty


@operation
def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss, one number, of logits (tokens, n_vocab) and targets (tokens,).

    Autocast leaves the logarithms in the dtype of the logits, which is an argument there.
    """
    return nll_loss(log_softmax_in_dtype(logits), targets)


@operation(autocast="float32")
def nll_loss(x: Tensor, targets: Tensor) -> Tensor:
    node = start_node("nll_loss", [x], [x, targets])
    y, total_weight = empty((), x.dtype), empty((), x.dtype)
    return finish_node(node, y, lambda saved, g: nll_loss_backward(saved[0]), [total_weight])


@operation
def nll_loss_backward(x: Tensor) -> Tensor:
    return empty(x.shape, x.dtype)


def cross_entropy_in_place(logits: Tensor, targets: Tensor, copies: bool) -> Tensor:
    """Replace logits, or a copy in at least float32, by their softmax, and that by its gradient.

    logits (batch, length, n_vocab), targets (batch, length).
    """
    dtype = at_least_float32(logits.dtype) if copies else logits.dtype
    return _losses_in_place(logits.flatten(0, -2), targets.flatten(), dtype).mean([0])


@operation
def _losses_in_place(logits: Tensor, targets: Tensor, dtype: str) -> Tensor:
    probabilities = logits.detach().to(dtype)
    n = probabilities.shape[0]
    places, mask = empty((n,), "int64"), empty((n,), "bool")
    is_above = empty((n,), "bool")  # combined with the mask in place
    del is_above
    largest = empty((n, 1), dtype)
    del largest
    rows = empty((n,), "int64")
    logit_of_target, total = empty((n,), dtype), empty((n,), dtype)
    losses = empty((n,), dtype)

    def gradients(saved, g):
        probabilities, _, places = saved
        rows = empty(places.shape, "int64")
        inverted = empty(places.shape, probabilities.dtype)
        is_on_device = empty(places.shape, probabilities.dtype)
        del inverted
        change = empty(places.shape, probabilities.dtype)
        del rows, is_on_device, change
        return probabilities

    node = start_node("cross_entropy_in_place", [logits])
    return finish_function(node, losses, gradients, [probabilities, mask, places])
