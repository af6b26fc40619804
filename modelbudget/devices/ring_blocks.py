"""Ring attention: keys and values of other devices come block by block, as torch computes it.

A device's queries meet its own keys first, then those of each other device, which have been
gathered at once (`all_gather`) or come from the device before (`ring`). A device has one of the
first and one of the last parts of the tokens, so that all compute equally much of a causal mask:
half of its queries with all keys of the devices after it, all queries with half of the keys of
those before it. Source: torch 2.13,
torch/distributed/tensor/experimental/_context_parallel/_attention.py; a function or class here is
named as that which it follows.
"""

from collections.abc import Sequence
from typing import NamedTuple

from modelbudget.operations.attention_kernels import flash_gradients, flash_results
from modelbudget.operations.autograd import finish_function, result_of, start_node
from modelbudget.operations.elementwise import log_sigmoid
from modelbudget.operations.joining import cat
from modelbudget.operations.memory_layout import empty_like
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import Active, Tensor, empty

ACCUMULATED = "float32"
"""The dtype in which blocks are merged and gradients are added (`convert_to_f32`)."""
SEQUENCE = 2
"""The dimension of the tokens."""


class Ring(NamedTuple):
    """The devices that divide the tokens, and how they exchange keys and values.

    `rotates`: keys and values come from one device after the other, not all at once.
    """

    n_device: int
    rank: int
    rotates: bool
    backend: str


def attend(ring: Ring, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention of a device's queries to the keys and values of all devices."""
    node = start_node("ring_attention", [q, k, v])
    with Active.tape.without_graph():
        out, sums, seeds = ring_attention(ring, q, k, v)

    def gradients(saved, g):
        q, k, v, _out, sums, *_seeds = saved
        return ring_attention_backward(ring, q, k, v, sums)

    return finish_function(node, out, gradients, [q, k, v, out, sums, *seeds])


class AllToAllRotater:
    """Sends to the next device, and receives from that before (`_AllToAllRotater`)."""

    def __init__(self):
        self.buffer: Tensor | None = None

    def exchange_buffers(self, buffer: Tensor) -> None:
        self.buffer = permute_tensor(buffer)

    def next_buffer(self) -> Tensor:
        assert self.buffer is not None
        return self.buffer


class AllGatherRotater:
    """Gathers once what all devices have (`_AllGatherRotater`)."""

    def __init__(self, n_device: int):
        self.n_device = n_device
        self.buffer: Tensor | None = None

    def exchange_buffers(self, buffer: Tensor) -> None:
        if self.buffer is None:
            self.buffer = all_gather_single(buffer, self.n_device)

    def next_buffer(self) -> Tensor:
        assert self.buffer is not None
        return self.buffer.chunk(self.n_device, 0)[0]


@operation
def permute_tensor(x: Tensor) -> Tensor:
    return empty_like(x)


@operation
def all_gather_single(x: Tensor, n_device: int) -> Tensor:
    return empty((n_device * x.shape[0],), x.dtype)


@operation
def flash_block(ring: Ring, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    return result_of("attention", lambda: flash_results(q, k, v, ring.backend))


@operation
def flash_block_backward(ring: Ring, q: Tensor, k: Tensor, v: Tensor) -> Sequence[Tensor]:
    return flash_gradients(q, k, v, ring.backend)


def _rotater(ring: Ring) -> AllToAllRotater | AllGatherRotater:
    return AllToAllRotater() if ring.rotates else AllGatherRotater(ring.n_device)


def ring_attention(ring: Ring, query: Tensor, key: Tensor, value: Tensor) -> tuple:
    """Return the result, logarithms of the sums of scores, and the random state."""
    key = key.contiguous()
    value = value.contiguous()
    merger = SDPAMerger()
    rotater, next_kv, seeds = _rotater(ring), None, []
    for i in range(ring.n_device):
        if i:
            next_kv = rotater.next_buffer()
            key, value = _parted(next_kv, key), _parted(next_kv, value)
        if i < ring.n_device - 1:
            next_kv = cat([key.flatten(), value.flatten()])
            next_kv = rotater.exchange_buffers(next_kv)
        if i == 0:
            q, k, v, partial = query, key, value, False
        elif i <= ring.rank:
            q, k, v, partial = query, _chunk(key, 0), _chunk(value, 0), False
        else:
            q, k, v, partial = _chunk(query, 1), key, value, True
        out, sums, *seeds = flash_block(ring, q, k, v)
        merger.step(out, sums, partial)
    return *merger.results(), seeds


def _parted(buffer: Tensor, like: Tensor) -> Tensor:
    """Return the keys, or the values, of a buffer that has both one after the other."""
    return Tensor((like.numel(),), (1,), buffer.dtype, buffer.storage).view(like.shape)


def _chunk(x: Tensor, number: int) -> Tensor:
    return x.chunk(2, SEQUENCE)[number]


class SDPAMerger:
    """Merges the results of blocks (`_SDPAMerger`)."""

    def __init__(self):
        self.out: Tensor | None = None
        self.sums: Tensor | None = None
        self.dtypes = "", ""

    def step(self, out: Tensor, sums: Tensor, partial: bool) -> None:
        self.dtypes = out.dtype, sums.dtype
        out = out.to(ACCUMULATED)
        sums = sums.to(ACCUMULATED)
        self.merge_one(out, sums, partial)

    def merge_one(self, block_out: Tensor, block_sums: Tensor, partial: bool) -> None:
        block_sums = block_sums.unsqueeze(-1)
        if self.out is None or self.sums is None:
            self.out, self.sums = block_out, block_sums
            return
        sums = _chunk(self.sums, 1) if partial else self.sums
        out = _chunk(self.out, 1) if partial else self.out
        out = out - (block_sums - sums).sigmoid() * (out - block_out)
        sums = sums - log_sigmoid(sums - block_sums)
        if partial:
            self.sums = partial_update(self.sums, sums)
            self.out = partial_update(self.out, out)
        else:
            self.out, self.sums = out, sums

    def results(self) -> tuple[Tensor, Tensor]:
        assert self.out is not None
        assert self.sums is not None
        out = self.out.to(self.dtypes[0])
        return out, self.sums.squeeze(-1).to(self.dtypes[1])


def partial_update(original: Tensor, new: Tensor | None = None) -> Tensor:
    """Return a copy, whose second half is new, or of which one half has been added to in place."""
    halves = original.chunk(2, SEQUENCE)
    if new is not None:
        halves[1] = new
    return cat(halves, SEQUENCE)


def ring_attention_backward(
    ring: Ring, query: Tensor, key: Tensor, value: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a device's queries, keys and values."""
    of_query = empty_like(query, ACCUMULATED)
    of_key = empty_like(key, ACCUMULATED)
    of_value = empty_like(value, ACCUMULATED)
    key = key.contiguous()
    value = value.contiguous()
    rotater, of_keys = _rotater(ring), AllToAllRotater()
    for i in range(ring.n_device):
        if i:
            buffer = rotater.next_buffer()
            key, value = _parted(buffer, key), _parted(buffer, value)
        if i < ring.n_device - 1:
            next_kv = cat([key.flatten(), value.flatten()])
            rotater.exchange_buffers(next_kv)
        if i == 0:
            q, k, v, _lse = query, key, value, sums
        elif i <= ring.rank:
            q, k, v, _lse = query, _chunk(key, 0), _chunk(value, 0), sums
        else:
            q, k, v, _lse = _chunk(query, 1), key, value, _chunk(sums, 1).contiguous()
        _of_q, _of_k, _of_v = flash_block_backward(ring, q, k, v)
        if i:  # else they are added in place
            next_of_kv = of_keys.next_buffer()
            of_key, of_value = _parted(next_of_kv, of_key), _parted(next_of_kv, of_value)
            if i <= ring.rank:
                of_key = partial_update(of_key)
                of_value = partial_update(of_value)
        next_of_kv = cat([of_key.flatten(), of_value.flatten()])
        of_keys.exchange_buffers(next_of_kv)
        if i > ring.rank:
            of_query = partial_update(of_query)
    of_query = of_query.to(query.dtype)
    next_of_kv = of_keys.next_buffer().to(key.dtype)
    return of_query, _parted(next_of_kv, of_key), _parted(next_of_kv, of_value)
