"""The graph of autograd, and its backward pass in the order of torch's engine.

Source: torch/csrc/autograd/engine.cpp and input_buffer.cpp; for the gradients of an operation,
tools/autograd/derivatives.yaml. A rule that is not obvious says what it is about.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from modelbudget.operations.tape import Active, Tensor

Outputs = TypeVar("Outputs")
NEWEST = float("inf")
"""The number of the node that keeps a parameter's gradient (AccumulateGrad): run before others."""
_SEVERAL = list, tuple


class Node:
    """An operation in the graph: what it saved, where its inputs came from, its gradients."""

    __slots__ = (
        "__weakref__", "before", "component", "edges", "gradients", "is_function", "layer", "leaf",
        "n_outputs", "name", "number", "saved", "step",
    )  # fmt: skip

    def __init__(self, name: str, inputs: Sequence[Tensor | None], saved: Sequence = ()):
        tape = Active.tape
        self.name, self.n_outputs = name, 1
        self.is_function = False
        """Whether it is a torch.autograd.Function, written in Python."""
        self.gradients: Callable | None = None
        self.before: list[Callable[[], None]] = []
        """Hooks of its outputs, which are called before it runs."""
        self.number: float = tape.n_nodes
        tape.n_nodes += 1
        self.component, self.layer, self.step = tape.components[-1], tape.layer, tape.step
        self.edges = [
            None if x is None or x.node is None else (x.node, x.output, x.shape, x.dtype)
            for x in inputs
        ]
        self.saved: list[Any] | None = (
            [None if x is None else save(x) for x in saved] if saved else []
        )
        self.leaf: Tensor | None = None

    def unpacked(self) -> list:
        return [x if x is None or isinstance(x, Tensor) else x.unpack() for x in self.saved or ()]


def start_node(name: str, inputs: Sequence[Tensor | None], saves: Sequence = ()) -> Node | None:
    """Leave a node before its operation runs, if an input needs a gradient.

    Torch saves arguments before it computes a result, and results after (`finish_node`). So a
    checkpointed part that runs again stops before its last product.
    """
    if Active.tape.records_graph:
        for x in inputs:
            if x is not None and x.node is not None:
                return Node(name, inputs, saves)
    return None


def finish_node(
    node: Node | None, outputs: Outputs, gradients: Callable, saves: Sequence = ()
) -> Outputs:
    """Give a node its outputs (one, or a list of several) and its gradients; return the outputs.

    `gradients(saved, *gradients of the outputs)` returns those of the inputs: one, or a sequence.
    """
    if node is not None:
        node.gradients = gradients
        if saves:
            assert node.saved is not None
            node.saved += [None if x is None else save(x) for x in saves]
        if isinstance(outputs, Tensor):
            outputs.node, outputs.output = node, 0
        else:
            several: Any = outputs
            node.n_outputs = len(several)
            for place, x in enumerate(several):
                x.node, x.output = node, place
    return outputs


def finish_function(
    node: Node | None, outputs: Outputs, gradients: Callable, saves: Sequence = ()
) -> Outputs:
    """Do the same for a torch.autograd.Function, written in Python."""
    if node is not None:
        node.is_function = True
    return finish_node(node, outputs, gradients, saves)


def with_node(
    name: str, outputs: Outputs, inputs: Sequence, gradients: Callable, saves: Sequence = ()
) -> Outputs:
    """Leave a node for a view, which allocates nothing, or for what saves only its result."""
    return finish_node(start_node(name, inputs), outputs, gradients, saves)


def by_input(functions: dict[int, Callable]) -> Callable:
    """Return the gradients of an operation, from those of its inputs by their number.

    They are computed in the order given, and only of inputs that need a gradient.
    """

    def gradients(saved, g):
        assert Active.tape.node is not None
        edges = Active.tape.node.edges
        outputs: list[Tensor | None] = [None] * len(edges)
        for place, gradient in functions.items():
            if edges[place] is not None:
                outputs[place] = gradient(saved, g)
        return outputs

    return gradients


def factors(x: Tensor, y: Tensor) -> list[Tensor | None]:
    """Return what a product saves: each factor that the gradient of the other needs."""
    return [x if y.needs_gradient else None, y if x.needs_gradient else None]


def save(x: Tensor):
    """Return what a node holds of a saved tensor: under a checkpoint, only a promise of it."""
    checkpoint = Active.tape.checkpoint
    return x.detach() if checkpoint is None else checkpoint.pack(x)


def result_of(name: str, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Return results of an operation, which a checkpoint may keep for its second run."""
    checkpoint = Active.tape.checkpoint
    return compute() if checkpoint is None else checkpoint.result_of(name, compute)


def make_leaf(x: Tensor) -> Tensor:
    """Let x keep its gradient, as a parameter does."""
    x.node = Node("accumulate", [])
    x.node.number, x.node.leaf = NEWEST, x
    return x


def in_layers(parameters: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield parameters, each while the tape names the layer that has it."""
    tape = Active.tape
    for p in parameters:
        tape.layer = None if p.node is None else p.node.layer
        yield p
    tape.layer = None


def backward(*roots: tuple[Tensor, Tensor]) -> None:
    """Run the graph from pairs of an output and its gradient: the newest ready node first."""
    tape = Active.tape
    outside = tape.phase, tape.records_graph, tape.node, tape.autocast
    tape.phase, tape.records_graph, tape.autocast = "backward", False, None  # casts nothing
    buffers: dict[Node, list] = {}
    for output, gradient in roots:
        assert output.node is not None
        buffers.setdefault(output.node, [None] * output.node.n_outputs)[output.output] = gradient
    del output, gradient  # the caller of loss.backward() holds them
    missing = readers_from(list(buffers))  # edges that must have been delivered before it runs
    turn = itertools.count()  # among parameters, those whose gradients came first
    ready = [(-node.number, next(turn), node) for node in buffers if not missing[node]]
    heapq.heapify(ready)
    while ready:
        _, _, node = heapq.heappop(ready)
        tape.node, gradients = node, buffers.pop(node, [None])
        if node.gradients is None:
            _keep_gradient(node.leaf, gradients)
            node = None
            continue
        for hook in node.before:
            hook()
        outputs = node.gradients(node.unpacked() if node.saved else [], *gradients)
        outputs = list(outputs) if isinstance(outputs, _SEVERAL) else [outputs]
        if node.is_function:
            gradients = None  # a Function frees them before its outputs are cast
        # `validate_outputs`: sums and casts, while the gradients and what was saved are live. By
        # index, since zip and enumerate hold the last element.
        for i, edge in enumerate(node.edges):
            if outputs[i] is not None and edge is not None:
                if outputs[i].shape is not edge[2]:
                    outputs[i] = _summed_to(outputs[i], edge[2])  # frees what it sums before a cast
                if outputs[i].dtype != edge[3]:
                    outputs[i] = _cast(outputs[i], edge[3])
        gradients = node.saved = None
        for i, edge in enumerate(node.edges):
            if edge is None:
                continue
            reader, place, *_ = edge
            if outputs[i] is not None:
                buffer = buffers.get(reader)
                if buffer is None:
                    buffer = buffers[reader] = [None] * reader.n_outputs
                if buffer[place] is None:
                    buffer[place], outputs[i] = outputs[i], None
                else:  # the summand is live until all outputs have been delivered
                    buffer[place] = _accumulated(buffer[place], outputs[i])  # pyrefly: ignore[bad-argument-type, unsupported-operation]
                buffer = None
            missing[reader] = n_missing = missing[reader] - 1
            if not n_missing:
                heapq.heappush(ready, (-reader.number, next(turn), reader))
            reader = edge = None
        node = outputs = None
    tape.node = None
    while tape.callbacks:
        tape.callbacks.pop()()
    tape.phase, tape.records_graph, tape.node, tape.autocast = outside


def readers_from(roots: Sequence[Node]) -> dict[Node, int]:
    """Return all nodes of the graph that lead to some, and how many edges lead to each."""
    n_readers, stack = dict.fromkeys(roots, 0), list(roots)
    while stack:
        for edge in stack.pop().edges:
            if edge is None:
                continue
            node = edge[0]
            if node in n_readers:
                n_readers[node] += 1
            else:
                n_readers[node] = 1
                stack.append(node)
    return n_readers


def _accumulated(x: Tensor, y: Tensor) -> Tensor:
    """Add two gradients out of place, as torch does while a tracer watches (docs/limits.md)."""
    from modelbudget.operations.collectives import own_rows

    return own_rows(x) + own_rows(y)


def _summed_to(gradient: Tensor, shape) -> Tensor:
    """Sum a gradient over what was broadcast from the shape of an input."""
    if len(gradient.shape) == len(shape) and gradient.shape == shape:
        return gradient
    from modelbudget.operations.reductions import sum_to

    return sum_to(gradient, shape)


def _cast(gradient: Tensor, dtype: str) -> Tensor:
    if gradient.dtype == dtype:
        return gradient

    return gradient.to(dtype)


def _keep_gradient(leaf: Tensor | None, gradients: list) -> None:
    """Keep the gradient of a leaf (AccumulateGrad). One that is laid out differently is copied."""

    assert leaf is not None
    (gradient,) = gradients
    gradients.clear()
    if gradient is None:
        return
    if leaf.grad is None:
        if not _has_layout_of(gradient, leaf):
            gradient = gradient.contiguous()
        leaf.grad = gradient
    # A second gradient is added in place, which allocates nothing.
    gradient = None
    if leaf.name and Active.tape.accumulates_gradients:
        if Active.tape.divided is not None:
            Active.tape.divided.summed(leaf, leaf.grad)  # added to the buffer
        leaf.grad = None
    if leaf.name and Active.tape.update is not None:
        Active.tape.update(leaf)


def _has_layout_of(x: Tensor, y: Tensor) -> bool:
    return x.strides is y.strides or all(
        mine == other or size == 1
        for size, mine, other in zip(x.shape, x.strides, y.strides, strict=True)
    )
