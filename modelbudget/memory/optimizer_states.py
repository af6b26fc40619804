"""Optimizer states, and the phases of a training step."""

from collections.abc import Callable
from typing import Any

from modelbudget.architecture.arithmetic import largest, positive
from modelbudget.architecture.optimizers import (
    SINGLE,
    Sizes,
    kernels,
    numbers_of_head,
    optimizer_named,
)
from modelbudget.architecture.run_values import (
    accumulates,
    bytes_of,
    exact_bytes,
    own_numbers,
    rank,
    replicas,
)
from modelbudget.architecture.terms import Term, Terms, part, total
from modelbudget.memory.parameter_tensors import Neighbours, Tensor
from modelbudget.memory.step_program import Peak, peaks_of

OF_MODEL = "model"
"""The component of what an optimizer keeps once for all parameters."""


def states(r, trained: Terms, tensors: Terms) -> Terms:
    """Count the bytes of the optimizer states of each component, where their sizes do not matter.

    `trained`: the parameters that get a gradient; `tensors`: the number of their tensors. With
    master weights the copy itself is counted too.
    """
    (only_part,) = optimizer_named(r.optimizer).parts
    sizes = {"all": Sizes(1), "one": Sizes(0)}
    each, count = (
        sum(state.n_bytes(size, r) for state in only_part.states if state.numbers == name)
        for name, size in sizes.items()
    )
    each = each + r.master_weights * SINGLE
    none = Term(0)
    return {
        name: Term(each * term.each + count * tensors.get(name, none).each, term.instances)
        for name, term in trained.items()
    }


def states_by_sizes(a, r, of_tensors: Callable[[Callable[[Tensor], Any]], Terms]) -> Terms:
    """Count the bytes of the optimizer states of each component, and of tables of all.

    `of_tensors` sums a value of the parameter tensors of each component.
    """
    optimizer, of_head = optimizer_named(r.optimizer), numbers_of_head(a)

    def sizes(tensor: Tensor) -> Sizes:
        return Sizes(tensor.numbers, tensor.shape, tensor.name, of_head)

    def n_bytes(tensor: Tensor):
        states = optimizer.state_bytes(sizes(tensor), r)
        return states + r.master_weights * SINGLE * tensor.numbers

    terms, largest_table = of_tensors(n_bytes), max(part.once for part in optimizer.parts)
    if largest_table:
        tables = total(of_tensors(lambda tensor: optimizer.once(sizes(tensor))))
        terms[OF_MODEL] = Term(largest_table * positive(tables))
    return terms


def of_part(r, trained):
    """Count the numbers of a device's part of all `trained` parameters, with `zero: 1`.

    Nothing is padded: the last device's part may be smaller than the others.
    """
    return own_numbers(r, trained, replicas(r), rank(r))


def phases(r, trained, model_bytes, states, temporaries, forward_backward, updated=None) -> Terms:
    """Peak bytes of each phase of two steps; the second finds the optimizer states in memory.

    Gradients are freed after each step. `trained`: parameters that get a gradient;
    `model_bytes`, `states`, `temporaries`: bytes of all parameters and texts, of the states, of
    the optimizer's temporary tensors, None if they are not known: its phases are left out then;
    `forward_backward`: the peak of a pass, a function of the bytes that the optimizer holds
    already.

    Gradients that are cast one by one leave their float32 copies (Megatron-Core,
    optimizer/optimizer.py, `_copy_model_grads_to_main_grads`). The last cast needs less than
    the temporaries do. A buffer of gradients is there from the start, and stays
    (distributed/param_and_grad_buffer.py).
    """
    size = bytes_of(r.dtype) * int(r.gradient_casts == "together")
    copies = r.master_weights * exact_bytes(r.dtype) * trained
    buffer = accumulates(r) * copies
    master = r.master_weights * exact_bytes(r.dtype) * (trained if updated is None else updated)
    is_early = optimizer_named(r.optimizer).states_from == "start"
    of_pass = forward_backward(0)  # over what the optimizer holds
    stepping = None
    if temporaries is not None:
        stepping = model_bytes + size * trained + copies + states + temporaries
    peaks = {
        "first.forward_backward": of_pass + ((states if is_early else master) + buffer),
        "first.optimizer": stepping,
        "second.forward_backward": of_pass + (states + buffer),
        "second.optimizer": stepping,
    }
    return part("", {phase: peak for phase, peak in peaks.items() if peak is not None})


def peaks_of_step(r, kernel: str) -> tuple[Peak, ...] | None:
    """Return the possible peaks of the temporary tensors of a step; None if no formula has them."""
    optimizer = optimizer_named(r.optimizer)
    if not optimizer.follows_numbers or not optimizer.has_kernel(kernel):
        return None
    return peaks_of(optimizer.parts[0].step[kernel], kernel != "single")


def has_two_temporaries(r) -> int:
    """1 where a step needs two temporary tensors of the current parameter's size, as Adam's."""
    return int(any(cost.of_number > 1 for cost, _ in peaks_of_step(r, "single") or ()))


def is_known(r) -> bool:
    """Whether the peak of training has a closed formula: with the step's tensors, or without it.

    Without it where nobody knows these; by a program where one depends on the sizes of others.
    """
    optimizer = optimizer_named(r.optimizer)
    return all(
        peaks_of_step(r, kernel) is not None or not optimizer.has_kernel(kernel)
        for kernel in kernels(r)
    )


def temporaries(r, trained, neighbours: list[Neighbours]):
    """Count the bytes of the temporary tensors of a step; None if they are not known.

    With foreach, of all parameters at once; none if it is fused, in a kernel that keeps them in
    registers (`native/cuda/fused_adam_utils.cuh`); otherwise of the current tensor and of the one
    before it, some of which are not yet freed (`step_program.py`).
    """
    plain, n_total = bytes_of(r.dtype), 0
    size = plain + r.master_weights * (SINGLE - plain)
    for kernel, is_run in kernels(r).items():
        peaks = peaks_of_step(r, kernel)
        if peaks is None:
            return None
        if kernel == "single":
            n_bytes = largest(0, *(_of_pair(peak, size, x) for peak in peaks for x in neighbours))
        else:
            n_bytes = largest(0, *(cost.n_bytes(size, trained) for cost, _ in peaks))
        n_total = n_total + is_run * n_bytes
    return n_total


def _of_pair(peak: Peak, size, pair: Neighbours):
    current, before = peak
    earlier = before.n_bytes(size, pair.before, positive(pair.before))
    return pair.is_there * (current.n_bytes(size, pair.numbers) + earlier)
