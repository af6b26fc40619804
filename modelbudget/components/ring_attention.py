"""Attention whose keys and values come block by block from other devices, as torch computes it.

A device's queries meet its own keys first, then those of each other device (Liu et al. 2023, §3),
which have been gathered at once (`all_gather`) or come from the device before (`ring`). A device
has one of the first and one of the last parts of the tokens, so that all compute equally much of a
causal mask: the first device half of its queries with all keys of each other block, the last device
all queries with half of the keys. Blocks are merged in single precision. Torch 2.13,
`torch/distributed/tensor/experimental/_context_parallel/_attention.py`:
`_templated_ring_attention`, `_templated_ring_attention_backward`, `_SDPAMerger`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from modelbudget.architecture.formula_arguments import Run
from modelbudget.architecture.operations import ceil_div, positive
from modelbudget.architecture.run_values import bytes_of, tokens
from modelbudget.components import scaled_dot_product
from modelbudget.components.scaled_dot_product import SEEDS, SINGLE, Heads
from modelbudget.memory.timeline import Allocation, Timeline, change, times


class Sizes(NamedTuple):
    """Bytes of a device's tensors; `wide`: in single precision; `key`: of keys, or of values.

    `copied_keys`, `copied_values`: 1 where they are not contiguous per head. `sums`: logarithms of
    the sums of scores. `block`, `block_sums`, `block_key`: what is computed of another block;
    `copied_sums`: 1 where backward copies its sums. `received`: keys and values of the devices that
    are received at once.
    """

    query: Any
    wide_query: Any
    key: Any
    wide_key: Any
    copied_keys: Any
    copied_values: Any
    sums: Any
    block: Any
    wide_block: Any
    block_sums: Any
    copied_sums: Any
    block_key: Any
    received: Any


class Step(NamedTuple):
    """A step after the first: 1 where there is one, and where another one follows it.

    `is_second`: whether what it replaces is of the first step, which computes a whole block.
    """

    is_there: Any
    sends: Any
    is_second: bool


def is_first(r: Run) -> int:
    """1 for the device with the first tokens, 0 for that with those in the middle."""
    return int(r.data_rank == "first")


def forward(h: Heads, r: Run) -> Timeline:
    """Return the timeline from queries, keys and values to the result and all that is saved."""
    found = computed(h, r)
    if r.recompute != "selective":
        return found
    return [*found, Allocation("checkpoint", 0, change(found) - _sizes(h, r).query)]


def computed(h: Heads, r: Run) -> Timeline:
    """Return the timeline to the result and what backward needs."""
    s = _sizes(h, r)
    found = [
        *_first_sent(s),
        Allocation("first block", s.query + s.sums + SEEDS),
        Allocation("first block in single precision", s.wide_query),
    ]
    for step in _steps(r):
        found += times(step.is_there, [*_forward_step(s, r, step)])
    return [*found, Allocation("result", s.query, change(found) - s.sums - SEEDS)]


def backward(h: Heads, r: Run) -> Timeline:
    """From the gradient of the result to those of queries, keys and values."""
    s = _sizes(h, r)
    repeated = computed(h, r) if r.recompute == "selective" else []
    copied = (s.copied_keys + s.copied_values) * s.wide_key
    found = [
        Allocation("gradients in single precision", s.wide_query + 2 * s.wide_key),
        *_first_sent(s, stays=1),
        Allocation("gradients of the first block", s.query + 2 * s.key),
        Allocation("gradients contiguous per head", copied),
        Allocation("gradients of keys and values together", 2 * s.wide_key, copied),
        Allocation("gradients sent", 2 * s.wide_key),
    ]
    for step in _steps(r):
        found += times(step.is_there, [*_backward_step(s, r, step)])
    found.append(Allocation("query gradient", s.query, s.wide_query))
    found.append(Allocation("key and value gradients", 2 * s.key, change(found) - s.query))
    saved = scaled_dot_product.saved_once_computed(h, r)
    return [*repeated, *found, Allocation("what was saved", 0, s.query + saved)]


def _steps(r: Run) -> list[Step]:
    """Return the kinds of steps after the first; steps between the second and the last are one."""
    more = positive(r.context_parallel - 2)
    return [Step(1, more, True), Step(positive(r.context_parallel - 3), 1, False),
            Step(more, 0, False)]  # fmt: skip


def _sizes(h: Heads, r: Run) -> Sizes:
    first, wide = is_first(r), SINGLE // bytes_of(r.dtype)
    query, key = (bytes_of(r.dtype) * tokens(r) * n * h.d_key for n in (h.n_head, h.n_kv_head))
    sums, apart = SINGLE * tokens(r) * h.n_head, positive(h.n_kv_head - 1) * positive(r.length - 1)
    gathers = int(r.context_exchange == "all_gather")
    block = ceil_div(query, 1 + first)
    return Sizes(
        query=query,
        wide_query=wide * query,
        key=key,
        wide_key=wide * key,
        copied_keys=(1 - h.rope) * apart,
        copied_values=apart,
        sums=sums,
        block=block,
        wide_block=wide * block,
        block_sums=ceil_div(sums, 1 + first),
        copied_sums=first * positive(r.batch * h.n_head - 1),
        block_key=ceil_div(key, 2 - first),
        received=2 * key * (1 + gathers * (r.context_parallel - 1)),
    )


def _first_sent(s: Sizes, stays=0) -> Timeline:
    """Return how the first keys and values are sent; `stays` 1: together, until the next are."""
    return [
        Allocation("contiguous keys and values", (s.copied_keys + s.copied_values) * s.key),
        Allocation("keys and values together", 2 * s.key),
        Allocation("keys and values received", s.received, (1 - stays) * 2 * s.key),
    ]


def _replaced(s: Sizes, r: Run, step: Step):
    """Bytes of the keys and values of the step before, which this one frees."""
    if step.is_second:
        return (s.copied_keys + s.copied_values) * s.key
    return int(r.context_exchange == "ring") * 2 * s.key


def _forward_step(s: Sizes, r: Run, step: Step) -> Iterator[Allocation]:
    both, ring, first = 2 * s.key, int(r.context_exchange == "ring"), is_first(r)
    yield Allocation("keys and values together", step.sends * both)
    yield Allocation("keys and values received", step.sends * ring * both, step.sends * both)
    yield Allocation("keys and values before", 0, _replaced(s, r, step))
    before = s.query if step.is_second else s.block + s.block_sums
    yield Allocation("block", s.block + s.block_sums + SEEDS, before + SEEDS)
    yield Allocation("block in single precision", s.wide_block)
    yield Allocation("weight of the block", 2 * s.block_sums, s.block_sums)
    yield Allocation("difference of results", s.wide_block)
    yield Allocation("weighted difference", s.wide_block, s.wide_block + s.block_sums)
    yield Allocation("merged results", s.wide_block, s.wide_block)
    yield Allocation("merged sums", 3 * s.block_sums, 2 * s.block_sums)
    yield Allocation("sums in place", first * s.sums, s.sums)
    yield Allocation("results in place", first * s.wide_query, s.wide_query)
    merged = first * (s.wide_block + s.block_sums)
    yield Allocation("block, freed", 0, s.wide_block + merged)


def _backward_step(s: Sizes, r: Run, step: Step) -> Iterator[Allocation]:
    both, ring, first = 2 * s.key, int(r.context_exchange == "ring"), is_first(r)
    yield Allocation("keys and values together", step.sends * both, step.sends * both)
    yield Allocation("keys and values received", step.sends * ring * both)
    of_block = s.copied_sums * s.block_sums
    before = 0 if step.is_second else of_block
    yield Allocation("sums of the block", of_block, _replaced(s, r, step) + before)
    gradients = s.block + 2 * s.block_key
    freed = s.query + both if step.is_second else gradients
    yield Allocation("gradients of the block", gradients, freed)
    yield Allocation("gradients sent before", 0, 4 * s.wide_key)
    yield Allocation("key and value gradients in place", (1 - first) * 2 * s.wide_key)
    yield Allocation("gradients of keys and values together", 2 * s.wide_key)
    yield Allocation("gradients sent", 2 * s.wide_key, (1 - first) * 2 * s.wide_key)
    yield Allocation("query gradient in place", first * s.wide_query, first * s.wide_query)
