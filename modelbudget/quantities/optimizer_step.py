"""A step of the optimizer: its states, casts of gradients, and temporary tensors.

What they are is data (`configs/optimizers/`); the programs of steps are those of
`memory/step_program.py`.
"""

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

from modelbudget.architecture.formula_arguments import Run
from modelbudget.architecture.optimizers import (
    NUMBERS,
    OptimizerData,
    OptimizerPart,
    Sizes,
    State,
    kernel_of,
    numbers_of_head,
    optimizer_named,
    sizes_of,
)
from modelbudget.architecture.run_values import has_part_of_states
from modelbudget.memory import step_program
from modelbudget.memory.optimizer_states import OF_MODEL, of_part
from modelbudget.operations.autograd import in_layers
from modelbudget.operations.collectives import WholeGradient
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.tape import Active, Tensor, empty, stored_in

ANY = State(name="temporary")


class Updated(NamedTuple):
    """A parameter, the tensor that is updated (itself or its float32 copy), and its part."""

    parameter: Tensor
    tensor: Tensor
    sizes: Sizes
    optimizer: OptimizerData
    part: OptimizerPart


class OptimizerStep:
    """The optimizer of some parameters, or of their float32 copies; gradients end with its step."""

    def __init__(self, a, run: Run, trained: list[Tensor], buffer: Tensor | None):
        """`buffer`: accumulated gradients, if the parameters have none."""
        self.run_config, self.trained, self.buffer = run, trained, buffer
        self.of_head = numbers_of_head(a)
        self.kernel, self.optimizer = kernel_of(run), optimizer_named(run.optimizer)
        if has_part_of_states(run):
            self.trained = [_part_of_all(trained, run)]
        self.copies = self.trained
        if run.master_weights and not has_part_of_states(run):
            precise = at_least_float32(run.dtype)
            self.copies = [empty(p.shape, precise) for p in in_layers(trained)]
        self.states: list[tuple[str, Tensor]] = []
        """Tensors that are kept from step to step, with their component."""
        self.is_first = True
        self.updated: set[Tensor] = set()
        """Parameters that have been updated inside of a backward pass."""
        if self.optimizer.states_from == "start":
            self._make_states([self._updated(*pair) for pair in self._pairs()])

    @property
    def is_known(self) -> bool:
        """Whether the temporary tensors of its step are known."""
        return self.optimizer.has_kernel(self.kernel)

    def update(self, p: Tensor) -> None:
        """Update one parameter inside of the backward pass, and free its gradient."""
        tape, update = Active.tape, self._updated(p, p)
        before = tape.layer
        if p not in self.updated:
            self.updated.add(p)
            if update.optimizer.states_from == "first step":
                self._make_states([update])
        self._step([update])
        p.grad, tape.layer = None, before

    def run(self) -> None:
        run = self.run_config
        if run.optimizer_in_backward:
            return
        self.pairs = [
            pair for pair in self._pairs() if self.buffer is not None or pair[0].grad is not None
        ]
        """Parameters that have a gradient, and what is updated for them."""
        gradients = self._cast_gradients() if run.master_weights and self.buffer is None else []
        updated = [self._updated(*pair) for pair in self.pairs]
        for optimizer in dict.fromkeys(id(update.optimizer) for update in updated):
            of_optimizer = [update for update in updated if id(update.optimizer) == optimizer]
            if self.is_first and of_optimizer[0].optimizer.states_from == "first step":
                self._make_states(of_optimizer)
            if self.is_known:
                self._step(of_optimizer)
        self.is_first = False
        for p in self.trained:
            p.grad = None
        del gradients

    def _step(self, updated: list[Updated]) -> None:
        if self.kernel == "single" or not any(
            self.kernel in update.part.step for update in updated
        ):
            self._one_by_one(updated)
        else:
            self._together(updated)

    def n_bytes_of_states(self):
        return sum(tensor.storage.n_bytes * tensor.storage.times for _, tensor in self.states)

    def bytes_by_component(self) -> Counter[str]:
        """Return the bytes of states and float32 copies."""
        kept = list(self.states)
        if self.run_config.master_weights or has_part_of_states(self.run_config):
            kept += [(p.name, copy) for p, copy in zip(self.trained, self.copies, strict=True)]
        n_bytes: Counter[str] = Counter()
        for name, tensor in kept:
            n_bytes[name] += tensor.storage.n_bytes * tensor.storage.times
        return n_bytes

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.trained, self.copies, strict=True)

    def _updated(self, p: Tensor, tensor: Tensor) -> Updated:
        sizes = sizes_of(p.name, tensor.shape, self.of_head)
        choices = self.optimizer.choices(sizes)
        optimizer, part = next((optimizer, part) for optimizer, part, holds in choices if holds)
        return Updated(p, tensor, sizes, optimizer, part)

    def _make_states(self, updated: list[Updated]) -> None:
        for update in self._in_layers(updated):
            run = _of_dtype(update.tensor, self.run_config)
            # A momentum begins as a copy of the gradient, of a matrix whose gradient may be whole.
            gradient = update.parameter.grad
            whole = gradient.n_device if isinstance(gradient, WholeGradient) else 1
            for state in update.part.states:
                n_bytes = state.n_bytes(update.sizes, run) // state.count
                n_bytes = n_bytes * (whole if state.copies_gradient else 1)
                shape = update.tensor.shape
                tensors = [stored_in(n_bytes, shape) for _ in range(state.count) if n_bytes]
                self.states += [(update.parameter.name, tensor) for tensor in tensors]
        if once := max((update.part.once for update in updated), default=0):
            self.states.append((OF_MODEL, stored_in(once, (once,))))

    def _in_layers(self, updated: list[Updated]) -> Iterator[Updated]:
        """Yield what is updated, each while the tape names the layer of its parameter."""
        for update, _ in zip(updated, in_layers(x.parameter for x in updated), strict=True):
            yield update

    def _cast_gradients(self) -> list[Tensor]:
        gradients = []
        for p in in_layers(p for p, _ in self.pairs):
            assert p.grad is not None
            gradients.append(p.grad.to("float32"))
            if self.run_config.gradient_casts == "one_by_one":
                p.grad = None
        return gradients

    def _one_by_one(self, updated: list[Updated]) -> None:
        names: dict[str, Tensor] = {}
        for update in self._in_layers(updated):
            for block in step_program.parsed(update.part.step["single"]):
                for _ in range(block.times):
                    self._run(block.lines, names, update)

    def _together(self, updated: list[Updated]) -> None:
        """Run the program of each part for all of its tensors; names hold lists of tensors."""
        names: dict[str, list[Tensor]] = {}
        for part in dict.fromkeys(id(update.part) for update in updated):
            of_part = [update for update in updated if id(update.part) == part]
            for block in step_program.parsed(of_part[0].part.step[self.kernel]):
                self._run_block(block, of_part, names)

    def _run_block(self, block, of_part: list[Updated], names: dict[str, list[Tensor]]) -> None:
        if block.over == "once":
            self._run(block.lines, {}, of_part[0])
        elif block.over == "each":
            of_each: dict[str, Tensor] = {}
            for update in self._in_layers(of_part):
                self._run(block.times * block.lines, of_each, update)
        else:
            for line in block.lines:
                if line.numbers:
                    tensors = [_temporary(line.numbers, line.dtype, update, self.run_config)
                            for update in self._in_layers(of_part)]  # fmt: skip
                    names[line.name] = tensors
                    del tensors
                elif line.source:
                    names[line.name] = names[line.source]
                else:
                    del names[line.name]

    def _run(self, lines, names: dict[str, Tensor], update: Updated) -> None:
        def allocate(numbers: str, dtype: str) -> Tensor:
            return _temporary(numbers, dtype, update, self.run_config)

        step_program.run(lines, names, allocate, lambda tensor: tensor.dtype)


def _part_of_all(trained: list[Tensor], run: Run) -> Tensor:
    """Return a device's part of all parameters in a row, in float32 (`zero: 1`)."""
    part = empty((of_part(run, sum(p.numel() * p.storage.times for p in trained)),), "float32")
    part.name = OF_MODEL
    return part


def _of_dtype(tensor: Tensor, run: Run) -> SimpleNamespace:
    """Return the run of a tensor that is updated itself."""
    return SimpleNamespace(
        dtype=tensor.dtype, master_weights=False, optimizer_rank=run.optimizer_rank
    )


def _temporary(numbers: str, dtype: str, tensor_updated: Updated, run: Run) -> Tensor:
    n = NUMBERS[numbers](tensor_updated.sizes, run, ANY)
    return empty((n,), tensor_updated.tensor.dtype if dtype == "parameter" else dtype)
