"""Activation checkpointing as torch.utils.checkpoint does it with `use_reentrant=False`."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable

from modelbudget.operations.autocast import Autocast
from modelbudget.operations.autograd import Node
from modelbudget.operations.tape import Active, Tensor

Keeps = Callable[[str, int], bool]
"""Whether the results of an operation are kept: its name, and how many of it came before."""


def nothing(name: str, n_before: int) -> bool:
    """Whether full checkpointing keeps a result: none."""
    return False


def every_second_product(name: str, n_before: int) -> bool:
    """Whether torchtitan keeps a result: attention's, sums over devices, and every second product.

    Source: torchtitan/models/llama3/infra/parallelize.py (`_save_list`, `selective_ac_option: op`)
    at commit 9dec370; torch/utils/checkpoint.py (`create_selective_checkpoint_contexts`).
    """
    return name != "mm" or n_before % 2 == 0


def checkpoint(compute: Callable, *args, keeps: Keeps = nothing):
    """Compute without saving anything but the arguments, and results that `keeps` names.

    Tensors among the arguments are saved; those inside tuples are only held.
    """
    tape = Active.tape
    if not tape.records_graph:
        return compute(*args)
    call = Checkpoint(compute, args, keeps)
    before, tape.checkpoint = tape.checkpoint, call
    try:
        return compute(*args)
    finally:
        tape.checkpoint = before


class Checkpoint:
    """A checkpointed call. It runs again when a tensor is wanted that it would have saved."""

    def __init__(self, compute: Callable, args: tuple, keeps: Keeps):
        self.compute, self.args, self.keeps = compute, args, keeps
        self.n_results: Counter[str] = Counter()
        self.kept: dict[tuple[str, int], tuple[str, list[Tensor]]] = {}
        """Results by operation and number, with the component that computed them."""
        self.promises: list[weakref.ref[Promise]] = []
        self.n_saved_again: int | None = None
        self.step = Active.tape.step
        """The step of a loop in which it runs, both times; none outside of loops."""
        # torch's _NoopSaveInputs: a node that saves the arguments and belongs to no gradient.
        self.inputs = Node("checkpoint", [], [x for x in args if isinstance(x, Tensor)])
        autocast = Active.tape.autocast
        self.autocast_dtype = None if autocast is None else autocast.dtype

    def pack(self, x: Tensor) -> Promise | Tensor:
        """Promise a tensor in the first run; keep it for its promise in the second.

        The nodes of the second run hold it too, as long as they live: also one whose promise
        nobody has kept.
        """
        if self.n_saved_again is None:
            promise = Promise(self)
            self.promises.append(weakref.ref(promise))
            return promise
        promise = self.promises[self.n_saved_again]()
        if promise is not None:
            promise.tensor = x.detach()
        self.n_saved_again += 1
        if self.n_saved_again == len(self.promises):
            raise StopRecomputationError
        return x.detach()

    def result_of(self, name: str, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Keep results in the first run; give them in the second, without computing them."""
        number = self.n_results[name]
        self.n_results[name] += 1
        if self.n_saved_again is not None:
            return self.kept.pop((name, number))[1] if (name, number) in self.kept else compute()
        results = compute()
        if self.keeps(name, number):
            component = Active.tape.components[-1]
            self.kept[name, number] = component, [x.detach() for x in results]
        return results

    def run_again(self) -> None:
        tape = Active.tape
        self.n_results.clear()
        node = tape.node
        assert node is not None
        before = tape.checkpoint, tape.records_graph, tape.autocast, tape.step, node.step
        tape.checkpoint, tape.records_graph, self.n_saved_again = self, True, 0
        tape.step = node.step = self.step
        tape.autocast = None if self.autocast_dtype is None else Autocast(self.autocast_dtype)
        try:
            self.compute(*self.args)
        except StopRecomputationError:
            tape.step = self.step  # in which what loops that have stopped hold is freed
        finally:
            tape.checkpoint, tape.records_graph, tape.autocast, tape.step, node.step = before


class Promise:
    """A tensor that a checkpointed call did not save, and that running it again gives."""

    def __init__(self, call: Checkpoint):
        self.call = call
        self.tensor: Tensor | None = None

    def unpack(self) -> Tensor:
        if self.tensor is None:
            self.call.run_again()
        # Freed when the formula of the gradient returns, not with what other nodes saved.
        tensor, self.tensor = self.tensor, None
        assert tensor is not None
        return tensor


class StopRecomputationError(Exception):
    """The last tensor that was to be saved has been computed again."""
