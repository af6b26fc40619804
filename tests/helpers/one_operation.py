"""One operation in torch and on a tape: all that it allocates, returns, saves and computes.

The tracker of storages here shares no code with modelbudget/measurement.
"""

import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from helpers.tiers import examples
from modelbudget.operations.activation_checkpoint import Promise
from modelbudget.operations.autograd import NEWEST, Node, backward, readers_from
from modelbudget.operations.tape import BYTES, Storage, Tape, Tensor, running_on

FLOPS = flop_registry | {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
}
"""Torch has no formula for a CPU's kernel, which computes the same products as a GPU's."""
FLOATS = ("float32", "bfloat16", "float64")
SIZES = (1, 1, 2, 3, 5)
LAYOUTS = "transposed sliced repeated"
UNREPEATED = "transposed sliced"
DENSE = "transposed"
META = ("meta",)


class Case(NamedTuple):
    """An operation, in torch and as a program, and the shapes of its operands.

    `shapes`: a word for each operand, a letter for each size; one that ends in `#` has integers.
    `sizes`: those of a letter, if not of SIZES. `broadcasts`: some sizes become 1 or are left out.
    `layouts`: those of operands that are not contiguous. `devices`: those on which torch does the
    same. `mixed`: operands have dtypes of their own.
    """

    name: str
    in_torch: Callable
    in_program: Callable
    shapes: str
    sizes: dict[str, tuple[int, ...]] = {}  # noqa: RUF012 (never changed)
    broadcasts: bool = False
    layouts: str = LAYOUTS
    dtypes: tuple[str, ...] = FLOATS
    devices: tuple[str, ...] = ("meta", "cpu")
    mixed: bool = False
    n_draws: int = examples(32)


class Operand(NamedTuple):
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    n_stored: int
    needs_gradient: bool

    def in_torch(self, device: str) -> torch.Tensor:
        dtype = getattr(torch, self.dtype)
        if self.n_stored == _product(self.shape) and self.needs_gradient:  # no view: a parameter
            x = torch.empty_strided(self.shape, self.strides, dtype=dtype, device=device).zero_()
        else:
            x = torch.zeros(self.n_stored, dtype=dtype, device=device)
            x = x.as_strided(self.shape, self.strides)
        return x.requires_grad_(self.needs_gradient)

    def in_program(self, gradients: dict[int, Tensor] | None = None, place: int = 0) -> Tensor:
        """Return a tensor of the active tape, which puts its gradient under its place."""
        storage = Storage(BYTES[self.dtype] * self.n_stored)
        x = Tensor(self.shape, self.strides, self.dtype, storage)
        if gradients is not None and self.needs_gradient:
            x.name = "parameter" if self.n_stored == _product(self.shape) else ""
            x.node = Node("leaf", [])
            x.node.number = NEWEST
            x.node.gradients = lambda _, g: gradients.update({place: g}) or []
        return x


class Record(NamedTuple):
    """What one call and its backward pass leave. Sizes are bytes.

    `forward`, `backward`: each allocation with the live bytes that include it, those before the
    call left out. `results`, `gradients`: shape, strides, dtype, and whose storage. `saved`: whose
    storages, or how many bytes.
    """

    results: list
    forward: list
    saved: list
    gradients: list
    backward: list
    flops: tuple[int, int]


class Tracker(TorchDispatchMode):
    """Live bytes of all storages, each allocation, and FLOPs."""

    def __init__(self):
        super().__init__()
        self.live, self.allocations, self.flops = 0, [], 0
        self.watched: dict[int, weakref.ref] = {}

    def watch(self, x: torch.Tensor) -> None:
        storage = x.untyped_storage()
        key = storage._cdata
        if key not in self.watched:
            n_bytes = storage.nbytes()
            self.watched[key] = weakref.ref(storage, partial(self._freed, key, n_bytes))
            self.live += n_bytes
            if n_bytes:
                self.allocations.append((n_bytes, self.live))

    def _freed(self, key: int, n_bytes: int, _) -> None:
        del self.watched[key]
        self.live -= n_bytes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        for x in outputs if isinstance(outputs, tuple | list) else [outputs]:
            if isinstance(x, torch.Tensor):
                self.watch(x)
        if func is torch.ops.aten._safe_softmax.default:
            self._inside(args[0])
        formula = FLOPS.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=outputs)
        return outputs

    def _inside(self, scores: torch.Tensor) -> None:
        """Add what a safe softmax allocates, which `test_reductions.py` reads from a profile."""
        live = self.live
        for n_bytes in scores.numel(), scores.numel() // scores.shape[-1], scores.itemsize:
            live += n_bytes
            if n_bytes:
                self.allocations.append((n_bytes, live))

    def taken(self, baseline: int) -> list:
        """Return the allocations since it was last asked, less what was live before the call."""
        allocations, self.allocations = self.allocations, []
        return [(n_bytes, live - baseline) for n_bytes, live in allocations]


class _Saved:
    __slots__ = ("__weakref__", "tensor")

    def __init__(self, x: torch.Tensor):
        self.tensor = x.detach()


def record_torch(
    function: Callable, operands: Sequence[Operand], of_results: Callable, device: str
) -> Record:
    """Record a call in torch. `of_results` draws operands: the gradients of the results.

    A function's attribute `around_backward`, if it has one, makes the context of its backward pass.
    """
    tracker, saved = Tracker(), []

    def pack(x):
        kept = _Saved(x)
        saved.append(weakref.ref(kept))
        return kept

    inputs = [operand.in_torch(device) for operand in operands]
    for x in inputs:
        tracker.watch(x)
    owners = {x.untyped_storage()._cdata: f"input {i}" for i, x in enumerate(inputs)}
    baseline = tracker.live
    tracker.taken(0)
    with tracker, saved_tensors_hooks(pack, lambda kept: kept.tensor):
        outputs = function(*inputs)
    outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    forward, tracker.flops, n_forward = tracker.taken(baseline), 0, tracker.flops
    results = [_described_torch(x, owners) for x in outputs]
    storages = _storages(saved, owners)
    wanted = [x for x in inputs if x.requires_grad]
    roots = [x for x in outputs if x.requires_grad]
    drawn = of_results([_as_operand(x) for x in roots])
    pairs = [(x, g.in_torch(device)) for x, g in zip(roots, drawn, strict=True) if g is not None]
    if not wanted or not pairs:
        return Record(results, forward, storages, [], [], (n_forward, 0))
    for i, (_, g) in enumerate(pairs):
        tracker.watch(g)
        owners[g.untyped_storage()._cdata] = f"gradient {i}"
    baseline = tracker.live
    tracker.taken(0)
    with tracker, getattr(function, "around_backward", nullcontext)():
        outputs_with_gradient, of_outputs = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(
            outputs_with_gradient, wanted, of_outputs, allow_unused=True
        )
    described = [None if g is None else _described_torch(g, owners) for g in gradients]
    flops = n_forward, tracker.flops
    backward = tracker.taken(baseline)
    return Record(results, forward, storages, described, backward, flops)


def _storages(saved: Sequence[weakref.ref], owners: dict) -> list:
    """Return whose the storages are that nodes still hold, or their bytes."""
    kept = [reference() for reference in saved]
    storages = {x.tensor.untyped_storage() for x in kept if x is not None}
    return sorted((owners.get(x._cdata, x.nbytes()) for x in storages), key=str)


def record_program(function: Callable, operands: Sequence[Operand], of_results: Callable) -> Record:
    """Record the same call on a tape. A tracker on meta and on a CPU sees no kernel of a GPU."""
    tape = Tape(operands[0].dtype, lists_allocations=True)
    tape.backend = "cpu"
    captured: dict[int, Tensor] = {}
    with running_on(tape):
        inputs = [operand.in_program(captured, i) for i, operand in enumerate(operands)]
        owners = {id(x.storage): f"input {i}" for i, x in enumerate(inputs)}
        baseline = tape.live
        tape.allocations = []
        outputs = function(*inputs)
        outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
        forward = _taken(tape, baseline)
        results = [_described(x, owners) for x in outputs]
        nodes = readers_from([x.node for x in outputs if x.node is not None])
        saved = {x.storage for node in nodes for x in node.saved or () if isinstance(x, Tensor)}
        saved |= {
            x.storage
            for node in nodes
            for promise in node.saved or ()
            if isinstance(promise, Promise)
            for x in promise.call.inputs.saved or ()
        }
        storages = sorted((owners.get(id(x), x.n_bytes) for x in saved), key=str)
        del nodes, saved
        roots = [x for x in outputs if x.node is not None]
        drawn = of_results([Operand(x.shape, x.strides, x.dtype, 0, False) for x in roots])
        pairs = [(x, g.in_program()) for x, g in zip(roots, drawn, strict=True) if g is not None]
        n_forward = sum(tape.flops["forward"].values())
        if not pairs:
            return Record(results, forward, storages, [], [], (n_forward, 0))
        owners |= {id(g.storage): f"gradient {i}" for i, (_, g) in enumerate(pairs)}
        baseline = tape.live
        tape.allocations = []
        backward(*pairs)
        described = [
            _described(captured[i], owners) if captured.get(i) is not None else None
            for i, operand in enumerate(operands)
            if operand.needs_gradient
        ]
        flops = n_forward, sum(tape.flops["backward"].values())
        return Record(results, forward, storages, described, _taken(tape, baseline), flops)


def differences(case: Case, seed: int = 0) -> Iterator[str]:
    """Draw operands, gradients and which of them are wanted; yield where torch does otherwise."""
    draw = random.Random(f"{case.name} {seed}")
    for i in range(case.n_draws):
        # Python decompositions, of which torch's meta kernels are made, order the dimensions of
        # repeated tensors in some cases differently from TensorIterator.
        layouts = case.layouts
        repeats = i % 2 == 1 and "repeated" in layouts
        if not repeats:
            layouts = layouts.replace("repeated", "")
        devices = [x for x in case.devices if x == "cpu" or not repeats] or case.devices
        drawn = _draw_operands(case, layouts, draw)
        floats = [i for i, x in enumerate(drawn) if x.dtype != "int64"]
        for wants in product((False, True), repeat=len(floats)):
            is_wanted = dict(zip(floats, wants, strict=True))
            operands = [
                x._replace(needs_gradient=is_wanted.get(i, False)) for i, x in enumerate(drawn)
            ]
            of_results = partial(_draw_gradients, draw.random(), layouts)
            mine = record_program(case.in_program, operands, of_results)
            for device in devices:
                other = record_torch(case.in_torch, operands, of_results, device)
                for field, x, y in zip(Record._fields, mine, other, strict=True):
                    if x != y:
                        yield f"{case.name} on {device}: {field} {x}, in torch {y}; {operands}"
                        break


def _draw_operands(case: Case, layouts: str, draw: random.Random) -> list[Operand]:
    words = case.shapes.split(" ")
    sizes = {
        letter: draw.choice(case.sizes.get(letter, SIZES))
        for letter in sorted({*case.shapes} - {*" #"})
    }
    dtype = draw.choice(case.dtypes)
    operands = []
    for word in words:
        shape = [sizes[letter] for letter in word.strip("#")]
        if case.broadcasts and draw.random() < 0.5:
            shape = [1 if draw.random() < 0.4 else size for size in shape]
            shape = shape[draw.randrange(len(shape) + 1) :] if draw.random() < 0.4 else shape
        own_dtype = draw.choice(case.dtypes) if case.mixed else dtype
        own_dtype = "int64" if word.endswith("#") else own_dtype
        operands.append(_laid_out(tuple(shape), own_dtype, layouts, draw))
    return operands


def _laid_out(shape: tuple[int, ...], dtype: str, layouts: str, draw: random.Random) -> Operand:
    """Draw strides: contiguous, or transposed, sliced out of a larger tensor, or repeated."""
    order, stored, repeated = list(range(len(shape))), list(shape), -1
    words = layouts.split() if shape and draw.random() < 0.7 else []
    if "transposed" in words and draw.random() < 0.6:
        draw.shuffle(order)
    if "sliced" in words and draw.random() < 0.4:
        stored[draw.randrange(len(shape))] += draw.randint(1, 2)
    if "repeated" in words and draw.random() < 0.5:
        repeated = draw.randrange(len(shape))
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        if dim != repeated or shape[dim] == 1:
            strides[dim] = step
            step *= stored[dim]
    return Operand(shape, tuple(strides), dtype, step, False)


def _draw_gradients(seed: float, layouts: str, results: Sequence[Operand]) -> list[Operand | None]:
    """Draw a gradient of each result, or none of some."""
    draw = random.Random(seed)
    drawn: list[Operand | None] = []
    for result in results:
        g = _laid_out(tuple(result.shape), result.dtype, layouts, draw)
        if layouts and draw.random() < 0.3:  # as the result
            strides = tuple(result.strides)
            n = 1 + sum((size - 1) * step for size, step in zip(result.shape, strides, strict=True))
            g = g._replace(strides=strides, n_stored=n)
        drawn.append(g)
    missing = [i for i in range(len(drawn)) if draw.random() < 0.3]
    if len(missing) < len(drawn):
        for i in missing:
            drawn[i] = None
    return drawn


def _product(sizes) -> int:
    n = 1
    for size in sizes:
        n *= size
    return n


def _as_operand(x: torch.Tensor) -> Operand:
    return Operand(tuple(x.shape), x.stride(), str(x.dtype).removeprefix("torch."), 0, False)


def _described_torch(x: torch.Tensor, owners: dict) -> tuple:
    dtype = str(x.dtype).removeprefix("torch.")
    return _layout(x.shape, x.stride(), dtype, owners.get(x.untyped_storage()._cdata))


def _described(x: Tensor, owners: dict) -> tuple:
    return _layout(x.shape, x.strides, x.dtype, owners.get(id(x.storage)))


def _layout(shape, strides, dtype: str, owner: str | None) -> tuple:
    """Describe a tensor; a stride of a single number says nothing."""
    steps = (step if size > 1 else 0 for size, step in zip(shape, strides, strict=True))
    return tuple(shape), tuple(steps), dtype, owner or "its own"


def _taken(tape: Tape, baseline: int) -> list:
    allocations, tape.allocations = tape.allocations or [], []
    return [(x.n_bytes, x.live - baseline) for x in allocations if x.n_bytes]
