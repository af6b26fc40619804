"""What an engine serves on a device: each term of its memory, and the requests that are left."""

import functools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import Any, Literal, NamedTuple

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.layer_pattern import layers_from
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import bytes_of, target_tokens
from modelbudget.components.multi_token_prediction import own_layers
from modelbudget.predict.cache_bytes import layer_caches
from modelbudget.predict.compute_buffer import compute_buffer_bytes
from modelbudget.predict.engine_weights import (
    ALONE,
    ON_ONE_DEVICE,
    adapter_bytes,
    allocator_bytes,
    bytes_besides,
    dequantised_experts,
    draft_head_bytes,
    head_norm_bytes,
    kernel_padding_bytes,
    largest_matrix,
    rank_of,
    rotary_bytes,
    totals,
    weight_bytes,
)
from modelbudget.serving.cache_formats import FLOAT32
from modelbudget.serving.cache_layouts import cache_terms, pages_of
from modelbudget.serving.layers_by_cache import LayerCache

How = Literal["exact", "bounded", "read"]
ENDLESS = 2**40
"""Upper bound of the search for a length; beyond it, the length is unlimited."""
STATES_OF_SCANS = "d_state", "d_mamba_state", "d_scan_state"
TOKENS_OF_CHUNK = 128
INT64 = 8
SEGMENTED_ROWS = 128
"""Rows from which on torch sorts each as a segment; fewer are sorted as one, but a single row."""
NOT_KNOWN = "not known, requests are at most these"


class Term(NamedTuple):
    """Bytes of one device that are not left for the cache.

    exact: equal to what the engine allocates, by formula; bounded: at most `n_bytes` and at least
    `least`; read: somebody's reading, or given.
    """

    name: str
    n_bytes: int
    how: How
    note: str = ""
    least: int | None = None


@dataclass(frozen=True)
class Served:
    """Terms of one device, the bytes that are left, and what they are enough for.

    `cache_bytes` is what is left for the cache, `request_bytes` what a request of `length` tokens
    takes of it. In pages, also the bytes of a block, the blocks that are usable (one is a
    placeholder), and those of a request without a shared prefix. `most_requests`: where each
    bounded term is as small as it can be. `largest_length`: of `batch` requests.
    """

    memory: int
    usable: int
    terms: tuple[Term, ...]
    cache_bytes: int
    most_cache_bytes: int
    request_bytes: int
    shared_bytes: int
    block_bytes: int | None
    block_tokens: int | None
    blocks: int | None
    request_blocks: int | None
    requests: int
    most_requests: int
    largest_length: int


def forward_bytes(a: Architecture, run: RunConfig) -> tuple[int, int]:
    """Return the least and the most bytes of a forward pass of the batched tokens.

    Of our modules with products of query, key and value, and of gate and up, apart or in one, and
    with flash or memory-efficient attention, the fewest and the most; at the most also what kernels
    of recurrences keep, and with quantised weights a copy of the largest matrix in the dtype; with
    bitsandbytes always one of all experts of a layer. Raises ValueError.
    """
    rank = rank_of(a, run)
    fields: Any = rank
    n, length = run.batched_tokens, run.batched_tokens
    if getattr(rank, "position", "") == "learned":
        length = min(length, fields.n_ctx)
    if getattr(rank, "n_encoder_layer", 0):  # of whose sources no token sees those of another
        length = min(length, run.length)
    n_row = ceil_div(n, length)  # of equal lengths, or as many as are whole
    shapes = {(n_row, ceil_div(n, n_row)), (n // length, length)}
    if hasattr(rank, "window"):  # kernels of engines keep no scores and no masks in memory
        shown = {"window": fields.window and max(fields.window, length)}
        shown |= {"sinks": False} if hasattr(rank, "sinks") else {}
        shown |= {"position": "none"} if getattr(rank, "position", "") == "alibi" else {}
        rank = rank.model_copy(update=shown)
    plain = run.model_copy(update=ALONE | {"weights": "dtype", "backend": "gpu"})
    peaks, reason = [], None
    scanned = [name for name in STATES_OF_SCANS if getattr(rank, name, 0)]
    without_states = rank.model_copy(update=dict.fromkeys(scanned, 1))
    for how, kernel in product(("separate", "packed"), ("flash", "efficient")):
        settings = {"projections": how, "gate_and_up": how, "attention_kernel": kernel}
        try:
            varied = (
                plain.model_copy(update=settings | {"batch": batch, "length": tokens})
                for batch, tokens in shapes
            )
            peaks.append(max(_without_results(without_states, of_shape) for of_shape in varied))
        except ValueError as error:
            reason = error
    if not peaks:
        raise ValueError(str(reason))
    of_experts = dequantised_experts(rank, run)
    most = max(peaks) + chunk_states(rank, run) + max(largest_matrix(rank, run), of_experts)
    return min(peaks) + of_experts, most


def _without_results(a: Architecture, run: RunConfig) -> int:
    """Return the bytes of a prefill besides its parameters and its cache. Raises ValueError."""
    of_model = [*totals("parameter_bytes", a, run).values()]
    of_cache = [*totals("cache_bytes", a, run).values()]
    return totals("peak_inference_bytes", a, run)["prefill"] - sum(of_model) - sum(of_cache)


def chunk_states(a: Architecture, run: RunConfig) -> int:
    """Return the most bytes that kernels of a recurrence keep: a state of each chunk of tokens.

    Two in float32 of 128 tokens (vLLM's mamba/ops/ssd_combined.py); of delta rules one in the dtype
    of 64 (fla/ops/chunk_delta_h.py), which is less. Our scans have a state of each token.
    """
    caches = layer_caches(a, run.model_copy(update=ALONE | {"dtype": "float32"}))
    chunks = ceil_div(run.batched_tokens, TOKENS_OF_CHUNK)
    return 2 * chunks * max((cache.state for cache in caches), default=0)


def gathered_bytes(a: Any, run: RunConfig) -> int:
    """Return the most bytes of the states that devices gather for experts that replicas share.

    Inputs of the tokens of all replicas, and as many results (vLLM's allgather_reducescatter).
    """
    if run.data_parallel == 1 or not getattr(a, "n_expert", 0):
        return 0
    return 2 * run.data_parallel * run.batched_tokens * a.d_model * bytes_of(run.dtype)


class Draft(NamedTuple):
    """A draft model with a cache of its own: name, architecture and run."""

    name: str
    architecture: Architecture
    run: RunConfig


def served(
    a: Architecture,
    run: RunConfig,
    memory: int,
    others: Sequence[Term],
    draft: Draft | None = None,
    of_file: Term | None = None,
) -> Served:
    """Solve for the requests of `length` tokens that fit a device. Raises ValueError.

    `others`: what else the device holds; `of_file`: the weights, where a file has them as the
    engine loads them.
    """
    of_head = draft_head_bytes(a, run)
    of_draft = caches_on_device(draft.architecture, draft.run) if draft else []
    room = _Room(caches_on_device(a, run), run, of_draft)
    usable = ceil_div(run.utilisation * memory, 100)
    terms = [of_file] if of_file else _weights(a, run)
    if of_head:
        terms.append(Term("draft head", of_head, "exact", "EAGLE 3, as large a layer"))
    if run.served_adapters:
        n_bytes = run.served_adapters * adapter_bytes(a, run)
        note = f"{run.served_adapters} LoRA of rank {run.adapter_rank}"
        terms.append(Term("adapters", n_bytes, "exact", note))
    if draft:
        n_bytes = weight_bytes(draft.architecture, draft.run)
        terms.append(Term("draft model", n_bytes, "exact", draft.name))
    name, of_replicas = f"tokens of {run.data_parallel} replicas", gathered_bytes(a, run)
    gathered = Term(name, of_replicas, "bounded", "gathered for experts", 0)
    more = [gathered, *others] if of_replicas else others
    without_pass = usable - sum(term.n_bytes for term in (*terms, *more))
    is_llama, has_source = run.cache_layout == "cells", getattr(a, "n_encoder_layer", 0)

    @functools.cache
    def _pass(**of_run: int) -> Term:
        return pass_of(without_mtp(a), run.model_copy(update=of_run))

    def forward_of(n: int, length: int) -> Term:
        """Return the forward pass of `n` requests of a length, on which llama.cpp's depends."""
        if is_llama:
            return _pass(batch=n, length=length)
        return _pass(length=min(length, run.batched_tokens)) if has_source else _pass()

    def left_for(n: int, length: int) -> int:
        return max(without_pass - forward_of(n, length).n_bytes, 0)

    requests = _most_requests(room, left_for, run.length)
    terms += [forward_of(requests or run.batch, run.length), *more]
    room_left = max(usable - sum(term.n_bytes for term in terms), 0)
    smallest = sum(term.n_bytes if term.least is None else term.least for term in terms)
    most = max(usable - smallest, 0)
    most_requests = _most_requests(room, lambda n, length: most, run.length)
    shared = room.shared_bytes(run.length)
    pages = room.pages if room.is_one_group or not draft else None
    return Served(
        memory, usable, tuple(terms), room_left, most, room.request_bytes(run.length), shared,
        pages.block_bytes if pages else None, pages.block_tokens if pages else None,
        room.blocks(room_left) if pages else None,
        pages.blocks_of(run.length, target_tokens(run)) if pages else None,
        requests, most_requests, _longest(room, left_for, a))  # fmt: skip


def _weights(a: Architecture, run: RunConfig) -> list[Term]:
    """Return the weights of a device, less those of layers on the host, and vLLM's RoPE table."""
    a, of_mtp = without_mtp(a), weight_bytes(a, run) if getattr(a, "n_mtp_layer", 0) else 0
    n_bytes, note = weight_bytes(a, run), ""
    for name in ("host_expert_layers", "host_tensors"):
        if value := getattr(run, name):
            only = "known of a .gguf file alone; allowed: `gguf=FORMAT`"
            raise ValueError(f"{name} = {value}: {only}")
    if run.host_layers:
        n_bytes = weight_bytes(_without_layers(a, run), run)
        note = f"without {run.host_layers} layers on the host"
    if run.cache_layout == "cells":  # llama.cpp looks tokens up on the host
        rank: Any = rank_of(a, run)
        tied = getattr(rank, "tied", True)
        n_bytes -= 0 if tied else bytes_of(run.dtype) * rank.n_vocab * rank.d_model
    table, of_tables = rotary_bytes(a, run), f"vLLM's, n_ctx {getattr(a, 'n_ctx', 0):,}"
    how, least = ("exact", None) if run.rope_rows == 1 else ("bounded", table)
    gathered = "heads gathered, as in vLLM's OLMo 2"
    others = (
        Term("layers that draft", of_mtp and of_mtp - weight_bytes(a, run), "exact", "mtp"),
        *(Term(name, n, "exact", "vLLM's") for name, n in bytes_besides(a, run).items()),
        Term(
            "padding of experts", kernel_padding_bytes(a, run), "bounded", "for vLLM's kernels", 0
        ),
        Term("norms over all heads", head_norm_bytes(a, run), "bounded", gathered, 0),
        Term("RoPE table", run.rope_rows * table, how, of_tables, least),
        Term("rounding of weights", allocator_bytes(a, run), "bounded", "torch's allocator", 0),
    )
    return [Term("weights", n_bytes, "exact", note), *(term for term in others if term.n_bytes)]


def without_mtp(a: Architecture) -> Architecture:
    """Return a model without its layers for further tokens."""
    return a.model_copy(update={"n_mtp_layer": 0}) if getattr(a, "n_mtp_layer", 0) else a


def _without_layers(a: Any, run: RunConfig) -> Architecture:
    """Return the model without its first layers, which are on the host. Raises ValueError."""
    n = run.host_layers
    if not {"mixers", "n_dense_layer"} <= type(a).model_fields.keys():
        raise ValueError(f"host_layers = {n}: known of decoders alone; allowed: 0")
    if n >= a.n_layer:
        raise ValueError(f"host_layers = {n}: allowed: at most {a.n_layer - 1:,}")
    return layers_from(a, n, a.n_layer - n)


def caches_on_device(a: Architecture, run: RunConfig) -> list[LayerCache]:
    """Return what the layers on a device keep."""
    here = without_mtp(_without_layers(a, run) if run.host_layers else a)
    alone = run.model_copy(update=ON_ONE_DEVICE)
    layer_caches(here, alone)  # raises what no number of devices changes
    rank = rank_of(here, run)
    _check_context(a, run)
    of_device = layer_caches(rank, alone)
    if n_ahead := getattr(a, "n_mtp_layer", 0) or (run.draft_head != "none"):
        last = vars(own_layers(rank)) | {"n_layer": n_ahead}
        fields = {name: last[name] for name in ("mixers", "mlps", "n_layer", "n_dense_layer")}
        of_device += layer_caches(rank.model_copy(update=fields), alone)
    n_layers: Counter[LayerCache] = Counter()
    for cache in of_device:
        n_layers[cache._replace(n_layer=0)] += cache.n_layer
    return [cache._replace(n_layer=n) for cache, n in n_layers.items()]


def _check_context(a: Any, run: RunConfig) -> None:
    """Raise ValueError if devices that divide a context would not keep the same tokens' heads.

    `verify_with_parallel_config` in vLLM's config/model.py; MLA's latent is one head.
    """
    if run.context_parallel == 1:
        return
    if run.cache_layout != "paged":
        raise ValueError(f"context_parallel = {run.context_parallel}: needs cache_layout: paged")
    n_kv_head = 1 if getattr(a, "kv_lora_rank", 0) else getattr(a, "n_kv_head", 0) or 1
    most = max(gcd(run.tensor_parallel // n_kv_head, a.n_head // n_kv_head), 1)
    if most % run.context_parallel:
        raise ValueError(
            f"context_parallel = {run.context_parallel}: of tensor_parallel = "
            f"{run.tensor_parallel} devices {most} keep the same heads of keys and values "
            f"(n_kv_head = {n_kv_head}); allowed: what divides {most}"
        )


def pass_of(a: Architecture, run: RunConfig) -> Term:
    """Return what a pass of vLLM needs, or what llama.cpp reserves for those of n_ubatch tokens."""
    name, note, of_samples, of_run = "compute buffer", "its logs", 0, compute_buffer_bytes
    if run.cache_layout != "cells":
        name, note, of_run = "forward pass", "our modules", forward_bytes
        of_samples = sampling_bytes(a, run)
    name += f" of {run.batched_tokens:,} tokens"
    try:
        least, most = of_run(a, run)
    except ValueError as error:
        return Term(name, of_samples, "bounded", f"{NOT_KNOWN}: {error}", of_samples)
    if most <= of_samples:
        by_sort = ", sorted by torch" * (run.sampling_kernel == "sort")
        note = f"sampling for {run.sampled_requests:,} requests{by_sort}"
    return Term(name, max(most, of_samples), "bounded", note, max(least, of_samples))


def sampling_bytes(a: Any, run: RunConfig) -> int:
    """Return the bytes of vLLM's sampling, which follows the forward pass when that has ended.

    Of each request the logits of the whole vocabulary in the dtype and in float32
    (v1/sample/sampler.py), and probabilities and noise next to them, or what torch.sort needs.
    """
    of_logits = bytes_of(run.dtype) + FLOAT32
    more = sort_bytes(run.sampled_requests) if run.sampling_kernel == "sort" else 2 * FLOAT32
    return (of_logits + more) * run.sampled_requests * a.n_vocab


def sort_bytes(n_row: int) -> int:
    """Return the bytes that torch.sort takes for each float32 number of rows, on a GPU.

    Values and indices, the indices before, and CUB's copies of keys and indices. Of a few rows each
    index has its row next to it, twice, and keys are sorted apart (torch's
    native/cuda/SortStable.cu and cuda/cub.cuh).
    """
    sorted_numbers, copies = FLOAT32 + INT64, FLOAT32 + INT64
    if n_row == 1 or n_row >= SEGMENTED_ROWS:
        return sorted_numbers + INT64 + copies
    return sorted_numbers + 2 * INT64 + FLOAT32 + copies


class _Room:
    """What requests take of the cache: whole blocks of pages, or bytes.

    A block has the tokens of model and draft where all layers keep all tokens (vLLM's
    UniformTypeKVCacheSpecs).
    """

    def __init__(self, of_model: list[LayerCache], run: RunConfig, of_draft: list[LayerCache]):
        self.run, self.caches, self.draft = run, of_model, of_draft
        both = [*of_model, *of_draft]
        self.is_one_group = not any(
            cache.state or cache.window or cache.of_source for cache in both
        )
        of_pages = both if self.is_one_group else of_model
        self.pages = pages_of(of_pages, run) if run.cache_layout == "paged" else None

    def request_bytes(self, length: int, n: int = 1) -> int:
        """Return the bytes of one request, or of `n`, with those of its draft."""
        of_request = self.run.model_copy(update={"batch": n, "length": length})
        both = [cache_terms(caches, of_request) for caches in (self.caches, self.draft) if caches]
        return sum(term.total for terms in both for term in terms.values())

    def shared_bytes(self, length: int) -> int:
        """Return the bytes of the blocks of a prefix that all requests of a length share."""
        if not (prefix := min(self.run.shared_prefix, length - 1)):
            return 0  # the last token is computed again (`get_computed_blocks` of vLLM)
        if self.pages is None:
            raise ValueError("shared_prefix: needs cache_layout: paged")
        if any(group.of_source for group in self.pages.groups):
            raise ValueError(
                "shared_prefix: vLLM shares no blocks next to cross-attention; allowed: 0"
            )
        return self.pages.block_bytes * self.pages.shared_blocks(prefix, length)

    def blocks(self, n_bytes: int) -> int:
        """Return the usable blocks: vLLM keeps one as a placeholder."""
        assert self.pages
        return max(n_bytes // self.pages.block_bytes - 1, 0)

    def holds(self, n: int, n_bytes: int, length: int) -> bool:
        """Return whether `n` requests of a length fit."""
        if self.pages:
            n_bytes = self.blocks(n_bytes) * self.pages.block_bytes
            shared = self.shared_bytes(length)
            return shared + n * (self.request_bytes(length) - shared) <= n_bytes
        return self.request_bytes(length, n) <= n_bytes


LeftFor = Callable[[int, int], int]
"""The bytes that are left for the cache of some requests of a length."""


def _most_requests(room: _Room, left_for: LeftFor, length: int) -> int:
    """Return how many requests of a length fit."""
    if not room.request_bytes(length):
        return 0
    return bisect_left(
        range(1, ENDLESS), True, key=lambda n: not room.holds(n, left_for(n, length), length)
    )


def _longest(room: _Room, left_for: LeftFor, a: Any) -> int:
    """Return the most tokens of `batch` requests that fit, at most the model's positions."""
    batch = room.run.batch
    is_learned = getattr(a, "position", "") == "learned"
    lengths = range(1, (a.n_ctx if is_learned else ENDLESS) + 1)
    return bisect_left(lengths, True, key=lambda n: not room.holds(batch, left_for(batch, n), n))
