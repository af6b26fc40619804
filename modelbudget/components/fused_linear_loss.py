"""Head and cross-entropy in one kernel, which makes their gradients in the forward pass.

As Liger-Kernel's `fused_linear_cross_entropy` on a GPU of capability 8.0 or more, with defaults
(linkedin/Liger-Kernel at 00eba634, ops/fused_linear_cross_entropy.py): one buffer of logits for all
chunks of the tokens, in which a kernel writes their gradient. No logits are saved.
"""

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.operations.autograd import finish_function, start_node
from modelbudget.operations.elementwise import compare
from modelbudget.operations.operation import operation
from modelbudget.operations.part import NotComputedError
from modelbudget.operations.tape import Active, Tensor, empty


def rows_of_chunk(n, d_model, n_vocab):
    """Return the tokens of a chunk: a power of two with about n × d_model logits, at most n.

    Sizes may be symbols, which are compared and not read.
    """
    rows, power = ceil_div(n, ceil_div(n_vocab, d_model)), 1
    while power < rows:
        power *= 2
    return power if power < n else n


def program(model, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of all tokens. Raises NotComputedError if the head is no product alone."""
    if not model.head.is_product:
        raise NotComputedError("loss_kernel: fused_linear: a head with more than one matrix")
    states = model.states(tokens)
    return fused_linear_loss(states.flatten(0, 1), model.head.weight, targets.flatten(0, 1))


@operation
def fused_linear_loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    (n, d_model), n_vocab = x.shape, weight.shape[0]
    wants_weight = weight.needs_gradient
    node = start_node("fused_linear_loss", [x, weight])
    of_x = empty(x.shape, x.dtype)
    of_weight = empty(weight.shape, weight.dtype) if wants_weight else None
    losses = empty((n,), "float32")
    mask = compare(targets)
    number = empty((), "int64")  # of targets that count
    logits = empty((rows_of_chunk(n, d_model, n_vocab), n_vocab), x.dtype)
    Active.tape.count_flops((2 + wants_weight) * 2 * n * d_model * n_vocab)
    del logits
    loss = losses.sum([0])

    def gradients(saved, g):
        scalar = empty((), "float32")  # with which the gradient of the loss is compared
        return saved

    return finish_function(node, loss, gradients, [of_x, of_weight])
