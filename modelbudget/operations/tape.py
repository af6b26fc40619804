"""The tape: what is live, computed and declared while a program of operations runs.

Lifetimes are Python's: a storage is freed when the last name of a tensor in it goes, as in torch. A
program that has the names of its torch module has the lifetimes of that module.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, lru_cache
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from modelbudget.operations.activation_checkpoint import Checkpoint
    from modelbudget.operations.autocast import Autocast
    from modelbudget.operations.autograd import Node

    def _operator(_x: Any, _y: Any) -> Tensor: ...
    def _method(_x: Any, *_: Any, **__: Any) -> Tensor: ...
    def _views(_x: Any, *_: Any, **__: Any) -> list[Tensor]: ...


BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "bool": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of one number, by dtype."""

Item = TypeVar("Item")


def complex_of(dtype: str) -> str:
    """Return the dtype of complex numbers whose parts have a dtype."""
    return {"float32": "complex64", "float64": "complex128"}[dtype]


def real_of(dtype: str) -> str:
    return {"complex64": "float32", "complex128": "float64"}[dtype]


Shape = tuple[Any, ...]
"""Sizes of the dimensions: integers, or symbols that stand for them."""


class Allocation(NamedTuple):
    """One allocation of a run, and the live bytes that include it."""

    phase: str
    """forward, backward, optimizer, prefill or decode."""
    layer: int | None
    """The number of the layer, counted from 0; None outside of the layers."""
    component: str
    operation: str
    n_bytes: Any
    live: Any


class Repeat(NamedTuple):
    """Layers of a run that stand for more of them, in a row."""

    layers: range
    times: Any


def times_of_layers(repeats: Sequence[Repeat]) -> dict[int | None, Any]:
    """Return for how many layers each stands, if it is more than one."""
    times: dict[int | None, Any] = {}
    for repeat in repeats:
        for layer in repeat.layers:
            times[layer] = times.get(layer, 1) * repeat.times
    return times


class Step:
    """A step of a loop that runs, and for how many steps in a row it stands."""

    __slots__ = ("times",)

    def __init__(self, times):
        self.times = times


ONCE = Step(1)
"""Any step that stands for itself alone."""


_make_tuple: Any = tuple.__new__
"""As the class itself does, in a third of the time."""


class Tape:
    """Live bytes while a program runs, and what the run leaves.

    Attributes that a reader of a run uses: `parameters` in the order of their declaration,
    `caches` by component, `flops` by phase and component, and `peak` since it was last set, or
    `allocations` if they are listed.
    """

    def __init__(self, dtype: str = "float32", lists_allocations: bool = False):
        from modelbudget.operations import tensor_methods  # noqa: F401  which imports this file

        self.dtype = self.buffer_dtype = dtype
        """Of parameters, and of a model's buffers, which no rule casts."""
        self.backend = "gpu"
        """Whose kernels run, `gpu` or `cpu`: they differ in what they have beside a result."""
        self.live: Any = Active.zero()
        self.peak: Any = 0
        is_listed = lists_allocations or Active.zero is not int  # symbols have no order
        self.allocations: list[Allocation] | None = [] if is_listed else None
        self.parameters: list[Tensor] = []
        self.originals: dict[str, Tensor] = {}
        """By component: frozen parameters of which a copy is trained."""
        self.caches: list[tuple[str, Any]] = []
        self.flops: dict[str, Counter[str]] = {"forward": Counter(), "backward": Counter()}

        self.repeats, self.times = Active.repeats, times_of_layers(Active.repeats)
        self.repeating: list[tuple[Repeat | Step, Any, Any, int]] = []
        """The repeats that run, the innermost last: what was live, and the peak, before."""
        self.running: tuple[int | None, Step | None] = None, None
        """The layer and the step of the last allocation."""

        self.leaves: list[Tensor] = []
        """Tensors of a pass that are no parameters and keep a gradient until it ends."""

        self.phase, self.operation = "forward", ""
        self.layer: int | None = None
        self.step: Step | None = None
        """The step that runs, in a loop over tokens (`steps`)."""
        self.scope = ""
        """The component whose parameters are declared."""
        self.components: list[str] = ["loss"]
        """Components that run, the innermost last."""
        self.node: Node | None = None
        """The node whose gradients are computed, in the backward pass."""
        self.n_nodes = 0
        self.records_graph = True
        self.cache_length: tuple[Any, Any] | None = None
        """In inference: the sequences and tokens for which parts declare caches."""
        self.checkpoint: Checkpoint | None = None
        """The checkpointed call that runs."""
        self.autocast: Autocast | None = None
        self.adapter: Any = None
        """What a run trains of a model, and what it adds to it (`components/adapter.py`)."""
        self.weight_format: Any = None
        """How matrices of linear layers are stored (`components/weight_formats.py`)."""
        self.sharded: Any = None
        """Shards that a layer gathers (`devices/gathered_layers.py`)."""
        self.divided: Any = None
        """Parts that several devices compute together (`devices/divided_parts.py`)."""
        self.update: Callable[[Tensor], None] | None = None
        """What is called with a parameter when its gradient is there."""
        self.callbacks: list[Callable[[], None]] = []
        """What is called at the end of a backward pass (`queue_callback`)."""
        self.accumulates_gradients = False
        """Gradients of parameters are added to a buffer and dropped at once."""
        self.without_values: list[Tensor] = []
        """What autograd gets in place of a gradient that a product has added to that buffer itself:
        one tensor for each shape and dtype."""

    def component(self) -> str:
        """Return the innermost component that runs; in backward, that which made the node."""
        if len(self.components) == 1 and self.node is not None:
            return self.node.component
        return self.components[-1]

    def layer_that_runs(self) -> int | None:
        return self.layer if self.node is None else self.node.layer

    def step_that_runs(self) -> Step | None:
        return self.step if self.step is not None or self.node is None else self.node.step

    def allocated(self, n_bytes) -> None:
        node = self.node
        layer = self.layer if node is None else node.layer
        step = self.step if self.step is not None or node is None else node.step
        if layer != self.running[0] or step is not self.running[1]:
            self._go_to(layer, step)
        self.live = self.live + n_bytes
        if self.allocations is not None:
            components = self.components
            component = components[-1] if len(components) > 1 or node is None else node.component
            fields = self.phase, layer, component, self.operation, n_bytes, self.live
            self.allocations.append(_make_tuple(Allocation, fields))
        elif self.live > self.peak:
            self.peak = self.live

    def _go_to(self, layer: int | None, step: Step | None) -> None:
        """Leave the repeats that do not run any more, and begin those that run now.

        All of a repeat leave what one leaves, and so live bytes at a moment are a line from the
        first of them to the last.
        """
        self.running = layer, step
        repeats: list[Repeat | Step] = [x for x in self.repeats if layer in x.layers]
        if step is not None and step is not ONCE:
            repeats.append(step)
        while self.repeating and not any(self.repeating[-1][0] is x for x in repeats):
            repeat, live, peak, n_allocated = self.repeating.pop()
            more = (self.live - live) * (repeat.times - 1)
            if self.allocations is not None and Active.zero is int:
                of_last = [x._replace(live=x.live + more) for x in self.allocations[n_allocated:]]
                self.allocations += of_last
            elif self.allocations is not None:  # no more is live than at both ends of the line
                del self.allocations[n_allocated:]
                more = more.polynomial()
            else:
                self.peak = max(peak, self.peak, self.peak + more)
            self.live = self.live + more
        for repeat in repeats[len(self.repeating) :]:
            n_allocated = len(self.allocations or ())
            self.repeating.append((repeat, self.live, self.peak, n_allocated))
            if self.allocations is None:
                self.peak = self.live

    def restart(self, phase: str) -> None:
        """Begin a phase, whose peak is at least what is live now."""
        self._go_to(None, None)
        self.phase, self.peak = phase, self.live
        if self.allocations is not None:
            self.allocations = [Allocation(phase, None, "", "", 0, self.live)]

    def count_flops(self, n) -> None:
        """Count floating-point operations of what runs: two for a product and a sum."""
        of_phase, component = self.flops[self.phase], self.component()
        if self.repeats:
            n = n * self.times.get(self.layer_that_runs(), 1)
        if (step := self.step_that_runs()) is not None:
            n = n * step.times
        of_phase[component] = of_phase.get(component, 0) + n

    def without_caches(self) -> AbstractContextManager:
        """Let parts that are made declare no caches."""
        return _changed(self, "cache_length", None)

    def without_graph(self) -> AbstractContextManager:
        """Leave no nodes, as under torch.no_grad()."""
        return _changed(self, "records_graph", False)


class Base(NamedTuple):
    """A linear layer that may get an adapter.

    `is_stored`: in another format than its dtype; `before_copy`: what a copy of it is made from.
    """

    name: str
    forward: Callable
    weight: Tensor
    bias: Tensor | None
    d_in: Any
    d_out: Any
    is_stored: bool = False
    before_copy: tuple[Any, str] = (0, "float32")


class _Active(threading.local):
    """The tape on which operations of this thread run, and what a new one begins with."""

    zero: Any = int
    """What makes its live bytes: 0."""
    repeats: Sequence[Repeat] = ()
    """Layers that stand for more of them; one inside of another is after it."""
    few_steps = True
    """Let a step of a loop stand for more of them."""

    @cached_property
    def tape(self) -> Tape:
        return Tape()


Active = _Active()


def active() -> Tape:
    return Active.tape


@contextmanager
def running_on(tape: Tape) -> Iterator[Tape]:
    """Run operations on a tape. Cycles wait: to look for them took a quarter of the time."""
    before, Active.tape = Active.tape, tape
    collects = gc.isenabled()
    gc.disable()
    try:
        yield tape
    finally:
        Active.tape = before
        if collects:
            gc.enable()


def repeating(repeats: Sequence[Repeat]) -> AbstractContextManager:
    """Let layers stand for more of them, on tapes that are made here."""
    return _changed(Active, "repeats", repeats)


def steps_of(n) -> list[Step]:
    """Return the steps of a loop of n that are run: two at each end, and one for all between them.

    From one of those to the next live bytes are affine.
    """
    if Active.few_steps and n > 5:
        return [ONCE, ONCE, Step(n - 4), ONCE, ONCE]
    return [ONCE] * index(n)


def steps(loop: Iterable[Item], n) -> Iterator[Item]:
    """Run a loop of n steps, which has those of `steps_of`, and name each on the tape."""
    tape = Active.tape
    before = tape.step
    try:
        for item, tape.step in zip(loop, steps_of(n), strict=True):
            yield item
    finally:
        tape.step = before


@contextmanager
def _changed(of: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute, and set it back at the end."""
    before = getattr(of, name)
    setattr(of, name, value)
    try:
        yield
    finally:
        setattr(of, name, before)


class Storage:
    """Bytes that are live until no tensor and no node holds them.

    In a layer or step that stands for more of them, it stands for as many (`times`). What happens
    to it outside of layers, or of steps, happens to all.
    """

    __slots__ = ("__weakref__", "is_of_trained_parameter", "layer", "n_bytes", "step", "tape")

    def __init__(self, n_bytes):
        tape = Active.tape
        self.n_bytes, self.tape, self.is_of_trained_parameter = n_bytes, tape, False
        tape.allocated(n_bytes)
        layer, step = tape.running
        self.layer = layer if layer in tape.times else None
        """The layer that has allocated it, if that stands for more; the step likewise."""
        self.step = None if step is ONCE else step

    @property
    def times(self):
        times = self.tape.times.get(self.layer, 1)
        return times if self.step is None else times * self.step.times

    def resize(self, n_bytes) -> None:
        """Free the bytes and allocate others, for the same tensors (`UntypedStorage.resize_`)."""
        times = self._times_here()
        self.tape.live, self.n_bytes = self.tape.live - self.n_bytes * times, n_bytes
        self.tape.allocated(n_bytes * times)

    def __del__(self):
        tape = self.tape
        n_bytes = self.n_bytes
        if self.layer is not None or self.step is not None:
            n_bytes = n_bytes * self._times_here()
        tape.live = tape.live - n_bytes

    def _times_here(self):
        tape = self.tape
        is_outside = self.layer is not None and tape.layer_that_runs() is None
        times = tape.times[self.layer] if is_outside else 1
        if self.step is not None and tape.step_that_runs() is None:
            times = times * self.step.times
        return times


class Tensor:
    """A view of a storage: shape, strides (in numbers, not bytes) and dtype.

    `node` is what made it, if a gradient is wanted; `output` is its place among the node's results.
    A parameter has a `name` and, after a backward pass, a `grad`. Its operators and methods of
    torch are set by `tensor_methods.py`.
    """

    if TYPE_CHECKING:
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _operator
        __matmul__ = __pow__ = _operator
        __neg__ = abs = clamp = clone = contiguous = cos = exp = expm1 = masked_fill = _method
        relu = rsqrt = sigmoid = sin = sqrt = tanh = to = amax = cumsum = logsumexp = _method
        mean = prod = sum = expand = flatten = narrow = permute = reshape = select = _method
        squeeze = t = transpose = unflatten = unsqueeze = view = _method
        chunk = split = unbind = topk = _views

    __slots__ = ("dtype", "grad", "name", "node", "output", "shape", "storage", "strides")

    def __init__(self, shape: Shape, strides: Shape, dtype: str, storage: Storage):
        self.shape, self.strides, self.dtype, self.storage = shape, strides, dtype, storage
        self.node: Node | None = None
        self.output = 0
        self.name = ""
        self.grad: Tensor | None = None

    def detach(self) -> Tensor:
        return Tensor(self.shape, self.strides, self.dtype, self.storage)

    def numel(self):
        return product(self.shape)

    @property
    def needs_gradient(self) -> bool:
        return self.node is not None

    def __repr__(self):
        return f"{self.dtype}{self.shape}"


def product(sizes):
    """Multiply sizes; 1 if there are none."""
    result = 1
    for size in sizes:
        result = result * size
    return result


def contiguous_strides(shape) -> Shape:
    return _contiguous(tuple(shape))[0]


@lru_cache(maxsize=4096)
def _contiguous(shape: Shape) -> tuple[Shape, Any]:
    """Return the strides of a contiguous tensor, and how many numbers it has."""
    if not shape:
        return (), 1
    strides, n_numbers = [1], shape[-1]
    for size in shape[-2::-1]:
        strides.append(n_numbers)
        n_numbers = n_numbers * size
    strides.reverse()
    return tuple(strides), n_numbers


def empty(shape, dtype: str | None = None, strides: Shape | None = None) -> Tensor:
    """Allocate a tensor: contiguous, or with strides that leave out no number."""
    shape, dtype = tuple(shape), dtype or Active.tape.dtype
    contiguous, n_numbers = _contiguous(shape)
    return Tensor(shape, strides or contiguous, dtype, Storage(BYTES[dtype] * n_numbers))


def stored_in(n_bytes, shape) -> Tensor:
    """Allocate bytes in which a tensor of the tape's dtype is stored in another format."""
    return Tensor(tuple(shape), contiguous_strides(shape), Active.tape.dtype, Storage(n_bytes))


def view_of(x: Tensor, shape, strides) -> Tensor:
    """Return another shape and other strides of the same storage, without a node."""
    return Tensor(tuple(shape), tuple(strides), x.dtype, x.storage)
