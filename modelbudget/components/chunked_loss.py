"""Head and loss in chunks of the tokens, each with its gradients at once.

As torchtitan's `ChunkedLossWrapper` (torchtitan/components/loss.py): no logits are saved. When the
backward pass begins, the gradients of the head and of the states it reads are there.
"""

from types import SimpleNamespace

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import ceil_div, largest, positive
from modelbudget.architecture.run_values import (
    INDEX,
    bytes_of,
    exact_bytes,
    tokens,
)
from modelbudget.components import loss
from modelbudget.memory.timeline import Allocation, Timeline, live_bytes
from modelbudget.operations.autograd import backward, finish_node, make_leaf, start_node
from modelbudget.operations.elementwise import add, div, to
from modelbudget.operations.losses import cross_entropy
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.tape import Active, empty
from modelbudget.operations.tape import Tensor as ProgramTensor
from modelbudget.operations.views import chunk, flatten


def is_chunked(r: Run):
    """1 where the run computes head and loss in chunks, else 0."""
    return positive(r.loss_chunks - 1)


def saved(a: Fields, r: Run):
    """Bytes saved for backward: the gradient of the states that the head reads."""
    return is_chunked(r) * bytes_of(r.dtype) * tokens(r) * a.d_model


def held(r: Run, of_head):
    """Return the bytes that are live when backward begins and that no operation saves.

    The loss and its gradient, the targets, and the head's gradients (`of_head` bytes).
    """
    return is_chunked(r) * (2 * exact_bytes(r.dtype) + INDEX * tokens(r) + of_head)


def forward(a: Fields, r: Run, n_rows, width):
    """Return the peak bytes of all chunks, in addition to those live when backward begins.

    `n_rows`: logits of a token; `width`: channels of the states that the head's matrix reads. The
    states and the gathered gradient are live throughout; at the end the gradient is cast to the
    dtype of the run.
    """
    one, exact, size = _one_chunk(r), exact_bytes(r.dtype), bytes_of(r.dtype)
    gathered = exact * tokens(r) * a.d_model + loss.number(r) - exact
    cast = int(exact != bytes_of(r.dtype)) * bytes_of(r.dtype) * tokens(r) * a.d_model
    kept = int(r.outputs == "kept") * size * tokens(one) * n_rows
    live = live_bytes(0, _timeline(a, one, n_rows, width))
    return is_chunked(r) * (gathered + largest(cast + kept, *live))


def _one_chunk(r: Run) -> SimpleNamespace:
    """Return the run of the tokens of one chunk."""
    length = ceil_div(tokens(r), r.loss_chunks)
    return SimpleNamespace(**vars(r) | {"batch": 1, "length": length})


def _timeline(a: Fields, r: Run, n_rows, width) -> Timeline:
    """Return the timeline of a chunk after the first, which adds its gradients to those before."""
    size, number, n = bytes_of(r.dtype), loss.number(r), tokens(r)
    states, logits = size * n * width, size * n * n_rows
    read = positive(a.d_emb) * states
    cast = int(number != size) * number * n * n_rows
    freed = int(r.outputs == "freed") * logits + cast + number
    weight, bias = size * n_rows * width, size * n_rows * a.head_bias
    of_projection = size * a.d_emb * a.d_model + positive(a.d_emb) * size * n * a.d_model
    return [
        Allocation("projected states", read),
        Allocation("loss", logits + cast + number * (n * n_rows + 2), freed),
        *loss.backward(r, n_rows),
        Allocation("head gradients", weight + bias + states, logits + weight + bias + read),
        Allocation("head projection gradients", of_projection, of_projection),
    ]


def program(model, r: Run, tokens: ProgramTensor, targets: ProgramTensor) -> ProgramTensor:
    """Compute head and loss for one chunk of the tokens after another, each with its gradients."""
    states = model.states(tokens)
    gradient = empty(states.shape, at_least_float32(states.dtype))
    loss, logits = empty((), gradient.dtype), None
    flat_states, flat_gradient = flatten(states.detach(), 0, 1), flatten(gradient.detach(), 0, 1)
    xs, gradients = chunk(flat_states, r.loss_chunks, 0), chunk(flat_gradient, r.loss_chunks, 0)
    labels_of = chunk(flatten(targets, 0, 1), r.loss_chunks, 0)
    chunks, sharded = zip(xs, gradients, labels_of, strict=True), Active.tape.sharded
    for x, _gradient, labels in chunks if sharded is None else sharded.chunks_of_head([*chunks]):
        logits = model.head(make_leaf(x))
        loss_of, logits = _loss_of(logits, labels, r), logits if r.outputs == "kept" else None
        loss_of = div(loss_of, 1.0)
        backward((loss_of, empty((), loss_of.dtype)))
        x.grad = x.node = None
        loss = add(loss, loss_of.detach())
    return _with_gradient(states, to(gradient, states.dtype), loss)


def _loss_of(logits: ProgramTensor, labels: ProgramTensor, r: Run) -> ProgramTensor:
    if r.loss_dtype == "float32":
        logits = to(logits, at_least_float32(logits.dtype))
    return cross_entropy(logits, labels)


def _with_gradient(
    states: ProgramTensor, gradient: ProgramTensor, loss: ProgramTensor
) -> ProgramTensor:
    """Return the loss, whose gradient of the states has been computed."""
    node = start_node("chunked_loss", [states])
    return finish_node(node, loss.detach(), lambda saved, g: saved[0], [gradient])
