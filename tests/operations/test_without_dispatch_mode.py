"""Programs against torch's profiler on a CPU, where no dispatch mode changes what autograd does.

It lists what torch's allocator is asked for, so it shares nothing with the traces. Without a mode
the second gradient of a tensor is added to the first in place, and so is attention's mask
(docs/limits.md); with one, and on a tape, the sums are allocated.
"""

import pytest
import torch
from helpers.small_programs import (
    MLP,
    PACKED,
    RESIDUAL,
    THREE_READERS,
    TWICE,
    checkpointed,
    checkpointed_program,
)
from torch.profiler import ProfilerActivity, profile

from modelbudget.measurement.trace.attention_dispatch import Call
from modelbudget.measurement.trace.backend import attention_math
from modelbudget.operations import attention_kernels
from modelbudget.operations.autograd import backward, make_leaf
from modelbudget.operations.tape import Tape, empty, running_on

SCALARS = {4, 8}
"""Bytes of numbers that become tensors inside of kernels."""


def profiled(function, shapes) -> list[tuple[int, int]]:
    """Return bytes and live bytes of each allocation of a forward and backward pass."""
    inputs = [torch.zeros(shape, requires_grad=True) for shape in shapes]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function(*inputs)
        gradient = torch.empty(result.shape)
        result.backward(gradient)
    events = profiler.profiler.kineto_results.events()
    live, allocations = 0, []
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            if event.nbytes() > 0:
                allocations.append((event.nbytes(), live))
    return allocations


def programmed(function, shapes) -> list[tuple[int, int]]:
    tape = Tape(lists_allocations=True)
    tape.backend = "cpu"
    with running_on(tape):
        inputs = [make_leaf(empty(shape)) for shape in shapes]
        before, tape.allocations = tape.live, []
        result = function(*inputs)
        backward((result, empty(result.shape)))
        return [(x.n_bytes, x.live - before) for x in tape.allocations]


EXACT = {
    "MLP": (*MLP, [(2, 3, 8), (16, 8), (8, 16)]),
    "residual sum": (*RESIDUAL, [(2, 3, 8), (8, 8)]),
    "attention": (*PACKED, [(2, 3, 8), (24, 8)]),
    # Its two gradients are views, which torch adds out of place with and without a mode.
    "a weight read twice": (*TWICE, [(2, 3, 8), (8, 8)]),
    "checkpoint": (
        checkpointed(MLP[0]),
        checkpointed_program(MLP[1]),
        [(2, 3, 8), (16, 8), (8, 16)],
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_every_allocation_is_the_allocators(name):
    in_torch, on_tape, shapes = EXACT[name]
    assert programmed(on_tape, shapes) == profiled(in_torch, shapes)


def test_the_second_and_third_gradient_of_a_tensor_are_added_in_place():
    in_torch, on_tape = THREE_READERS
    assert len(programmed(on_tape, [(2, 3)])) == len(profiled(in_torch, [(2, 3)])) + 2


def test_the_mask_of_attention_is_added_in_place():
    shape = batch, n_head, length, _ = (2, 3, 5, 8)

    def in_torch(q, k, v):
        return attention_math(Call(q, k, v, is_causal=True))

    on_tape = [n for n, _ in programmed(attention_kernels.math, [shape] * 3)]
    asked = [n for n, _ in profiled(in_torch, [shape] * 3) if n not in SCALARS]
    scores = batch * n_head * length * length * 4
    assert on_tape.count(scores) == asked.count(scores) + 1
    on_tape.remove(scores)
    assert [n for n in on_tape if n not in SCALARS] == asked
