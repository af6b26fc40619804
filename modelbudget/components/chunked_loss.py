"""Head and loss in chunks of the tokens, each with its gradients at once.

As torchtitan's `ChunkedLossWrapper` (torchtitan/components/loss.py): no logits are saved. When the
backward pass begins, the gradients of the head and of the states it reads are there.
"""

from modelbudget.architecture.formula_arguments import Run
from modelbudget.operations.autograd import backward, finish_node, make_leaf, start_node
from modelbudget.operations.losses import cross_entropy
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.tape import Active, empty
from modelbudget.operations.tape import Tensor as ProgramTensor


def program(model, r: Run, tokens: ProgramTensor, targets: ProgramTensor) -> ProgramTensor:
    """Compute head and loss for one chunk of the tokens after another, each with its gradients."""
    states = model.states(tokens)
    gradient = empty(states.shape, at_least_float32(states.dtype))
    loss, logits = empty((), gradient.dtype), None
    flat_states, flat_gradient = states.detach().flatten(0, 1), gradient.detach().flatten(0, 1)
    xs, gradients = flat_states.chunk(r.loss_chunks, 0), flat_gradient.chunk(r.loss_chunks, 0)
    labels_of = targets.flatten(0, 1).chunk(r.loss_chunks, 0)
    chunks, sharded = zip(xs, gradients, labels_of, strict=True), Active.tape.sharded
    for x, _gradient, labels in chunks if sharded is None else sharded.chunks_of_head([*chunks]):
        logits = model.head(make_leaf(x))
        loss_of, logits = _loss_of(logits, labels, r), logits if r.outputs == "kept" else None
        loss_of = loss_of / 1.0
        backward((loss_of, empty((), loss_of.dtype)))
        x.grad = x.node = None
        loss = loss + loss_of.detach()
    return _with_gradient(states, gradient.to(states.dtype), loss)


def _loss_of(logits: ProgramTensor, labels: ProgramTensor, r: Run) -> ProgramTensor:
    if r.loss_dtype == "float32":
        logits = logits.to(at_least_float32(logits.dtype))
    return cross_entropy(logits, labels)


def _with_gradient(
    states: ProgramTensor, gradient: ProgramTensor, loss: ProgramTensor
) -> ProgramTensor:
    """Return the loss, whose gradient of the states has been computed."""
    node = start_node("chunked_loss", [states])
    return finish_node(node, loss.detach(), lambda saved, g: saved[0], [gradient])
