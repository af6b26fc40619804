"""What an engine serves on a device: each term of its memory, and the requests that are left."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_adapter import ALL_LINEAR
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import bytes_of
from modelbudget.architecture.stored_formats import FORMATS
from modelbudget.components import layer
from modelbudget.components.multi_token_prediction import own_layers
from modelbudget.components.weight_formats import format_of
from modelbudget.predict.cache_bytes import kinds
from modelbudget.predict.prediction_or_reason import terms_or_reason
from modelbudget.serving.cache_layouts import cache_terms, pages_of
from modelbudget.serving.layers_by_cache import Kind

How = Literal["exact", "bounded", "read"]
VOCABULARY_MULTIPLE = 64
"""vLLM pads the vocabulary to this (DEFAULT_VOCAB_PADDING_SIZE), before it divides it."""
ENDLESS = 2**40
"""Upper bound of the search for a length; beyond it, the length is unlimited."""
NOT_KNOWN = "not known, requests are at most these"
DIVIDED_PARTS = {"attention", "sliding_attention", "mla", "gated_deltanet", "mlp", "moe", "none"}
"""Parts of layers whose share on one of several devices is known in serving."""
DIVIDED = "n_head", "n_linear_head", "n_linear_key_head", "d_ff", "d_shared"
"""Sizes of which each device has a part: columns of one matrix, rows of the next."""
ALONE = {
    "tensor_parallel": 1, "expert_parallel": 1, "data_parallel": 1, "sequence_parallel": False,
    "cache_dtype": "dtype", "cache_layout": "contiguous", "cache_unquantised": 0,
}  # fmt: skip


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


def rank_of(a: Architecture, tensor_parallel: int, expert_parallel: int) -> Architecture:
    """Return the architecture of what one device computes. Raises ValueError.

    Heads, hidden channels of MLPs and experts, and the vocabulary are divided (Shoeybi et al. 2019,
    §3; heads of Gated DeltaNet as vLLM's models/qwen3_next.py does); MLA's latent is on each. With
    expert_parallel whole experts are.
    """
    if tensor_parallel == 1 and expert_parallel == 1:
        return a
    setting = f"tensor_parallel = {tensor_parallel}"
    whole = "not divided in serving; allowed: --set tensor_parallel=1, the whole model on each"
    if not {"mixers", "mlps", "n_kv_head"} <= type(a).model_fields.keys():
        raise ValueError(f"{setting}: {a.name()}: {whole}")
    fields: Any = a
    parts = {name for name, n in layer.n_layers(fields).items() if n}
    if unknown := parts - DIVIDED_PARTS:
        raise ValueError(f"{setting}: {', '.join(sorted(unknown))}: {whole}")
    if fields.qk_norm in ("separate", "joint"):
        raise ValueError(f"{setting}: qk_norm = {fields.qk_norm}: {whole}")
    shares = {"vocab_multiple": 1}
    of_experts = expert_parallel if expert_parallel > 1 else tensor_parallel
    expert = "n_expert" if expert_parallel > 1 else "d_expert"
    for name, n in (*((size, tensor_parallel) for size in DIVIDED), (expert, of_experts)):
        size = getattr(fields, name)
        if size % n:
            raise ValueError(f"{name} = {size:,}: {n} devices do not divide it")
        shares[name] = size // n
    n_kv = fields.n_kv_head
    if n_kv % tensor_parallel and tensor_parallel % n_kv:
        raise ValueError(f"n_kv_head = {n_kv}: {tensor_parallel} devices do not divide it")
    shares["n_kv_head"] = max(n_kv // tensor_parallel, 1)
    rows = ceil_div(fields.n_vocab, fields.vocab_multiple) * fields.vocab_multiple
    rows = ceil_div(rows, VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    shares["n_vocab"] = ceil_div(rows, tensor_parallel)
    return a.model_copy(update=shares)


def _total(quantity: str, a: Architecture, run: RunConfig) -> dict[str, int]:
    """Return the totals of a quantity by component. Raises ValueError with the reason."""
    terms, why = terms_or_reason(quantity, a, run)
    if why:
        raise ValueError(f"{quantity}: {why}")
    return {name: term.total for name, term in terms.items()}


def weight_bytes(a: Architecture, run: RunConfig) -> int:
    """Return the bytes of a device's weights; the router is whole on each. Raises ValueError."""
    rank = rank_of(a, run.tensor_parallel, run.expert_parallel)
    _check_groups(a, rank, run)
    by_component = _total("parameter_bytes", rank, run.model_copy(update=ALONE))
    copies = run.expert_parallel
    return sum(n * (copies if name.endswith("router") else 1) for name, n in by_component.items())


def _check_groups(a: Architecture, rank: Architecture, run: RunConfig) -> None:
    """Raise ValueError if numbers that share a scale would be on two devices.

    vLLM cannot load such shards (vllm-project/vllm, issues 25292 and 52997).
    """
    if run.weights not in FORMATS:
        return
    for (whole, _), (part, _) in zip(matrices_of(a), matrices_of(rank), strict=True):
        word = format_of(run, part.routed)
        if word is None or not (stored := FORMATS[word].format).groups:
            continue
        is_second = part.routed and run.expert_weights != "weights"
        group = (is_second and run.expert_weight_group) or run.weight_group
        block = (is_second and run.expert_weight_block) or run.weight_block or stored.block
        sizes = (whole.d_in, part.d_in, group), (whole.d_out, part.d_out, block)
        for size, share, together in sizes:
            if together and share != size and share % together:
                devices = run.tensor_parallel
                most = max(d for d in range(1, devices) if not devices % d
                           and (d == 1 or not size % (d * together)))  # fmt: skip
                raise ValueError(
                    f"{part.name}: {share:,} of {size:,} channels on each device: {word} "
                    f"needs a multiple of {together}; allowed: --set tensor_parallel={most}"
                )


def forward_bytes(a: Architecture, run: RunConfig) -> tuple[int, int]:
    """Return the least and the most bytes of a forward pass of the batched tokens.

    Of our modules with products of query, key and value, and of gate and up, apart or in one, and
    with flash or memory-efficient attention, the fewest and the most; with quantised weights also,
    at the most, a copy of the largest matrix in the dtype. Raises ValueError.
    """
    rank = rank_of(a, run.tensor_parallel, run.expert_parallel)
    fields: Any = rank
    length = run.batched_tokens
    if getattr(rank, "position", "") == "learned":
        length = min(length, fields.n_ctx)
    batch = ceil_div(run.batched_tokens, length)
    if hasattr(rank, "window"):  # kernels of engines keep no scores and no masks in memory
        shown = {"window": fields.window and max(fields.window, length)}
        rank = rank.model_copy(update=shown | ({"sinks": False} if hasattr(rank, "sinks") else {}))
    plain = run.model_copy(
        update=ALONE | {"weights": "dtype", "batch": batch, "length": length, "backend": "gpu"}
    )
    peaks, reason = [], None
    for how, kernel in product(("separate", "packed"), ("flash", "efficient")):
        settings = {"projections": how, "gate_and_up": how, "attention_kernel": kernel}
        varied = plain.model_copy(update=settings)
        try:
            peak = _total("peak_inference_bytes", rank, varied)["prefill"]
            others = ("parameter_bytes", "cache_bytes")
            peaks.append(peak - sum(sum(_total(q, rank, varied).values()) for q in others))
        except ValueError as error:
            reason = error
    if not peaks:
        raise ValueError(str(reason))
    return min(peaks), max(peaks) + _largest_matrix(rank, run)


def matrices_of(a: Any) -> list:
    """Return the matrices of linear layers, with the number of layers that have each."""
    if not hasattr(a, "mlps"):
        return []
    n_layer = layer.n_layers(a)
    parts = layer.parts(a).items()
    return [
        (matrix, n_layer[name])
        for name, component in parts
        if n_layer[name] and hasattr(component, "matrices")
        for matrix in component.matrices(a)
    ]


def _largest_matrix(a: Architecture, run: RunConfig) -> int:
    if run.weights == "dtype":
        return 0
    sizes = [matrix.d_in * matrix.d_out for matrix, _ in matrices_of(a)]
    return bytes_of(run.dtype) * max(sizes, default=0)


def adapter_bytes(a: Architecture, run: RunConfig) -> int:
    """Return the bytes of one served LoRA adapter on a device: r (d_in + d_out) a matrix.

    Of column-parallel layers the first matrix is whole, of row-parallel ones the second (vLLM
    without fully_sharded_loras). Raises ValueError.
    """
    rank = rank_of(a, run.tensor_parallel, run.expert_parallel)
    targets = run.adapter_targets.split()
    numbers = sum(
        n_layer * matrix.n * (matrix.d_in + matrix.d_out)
        for matrix, n_layer in matrices_of(rank)
        if not matrix.routed and (ALL_LINEAR in targets or matrix.name in targets)
    )
    if not numbers:
        raise ValueError(f"served_adapters: adapter_targets = {run.adapter_targets}: no such layer")
    return bytes_of(run.dtype) * run.adapter_rank * numbers


def rotary_bytes(a: Any, run: RunConfig) -> int:
    """Return the bytes of vLLM's table of cosines and sines of all positions."""
    if getattr(a, "position", "") != "rotary" or run.cache_layout != "paged":
        return 0
    width = getattr(a, "d_rope", 0) or a.d_rotary or a.d_head
    return bytes_of(run.dtype) * a.n_ctx * width


class Draft(NamedTuple):
    """A draft model with a cache of its own: name, architecture and run."""

    name: str
    architecture: Architecture
    run: RunConfig


def served(
    a: Architecture,
    run: RunConfig,
    memory: int,
    reserve: Term,
    draft: Draft | None = None,
    of_file: Term | None = None,
) -> Served:
    """Solve for the requests of `length` tokens that fit a device. Raises ValueError.

    `of_file`: the weights, where a file has them as the engine loads them.
    """
    usable = ceil_div(run.utilisation * memory, 100)
    terms = [of_file] if of_file else _weights(a, run)
    if run.served_adapters:
        n_bytes = run.served_adapters * adapter_bytes(a, run)
        note = f"{run.served_adapters} LoRA of rank {run.adapter_rank}"
        terms.append(Term("adapters", n_bytes, "exact", note))
    if draft:
        n_bytes = weight_bytes(draft.architecture, draft.run)
        terms.append(Term("draft model", n_bytes, "exact", draft.name))
    terms += [_forward(_without_mtp(a), run), reserve]
    room_left = max(usable - sum(term.n_bytes for term in terms), 0)
    smallest = sum(term.n_bytes if term.least is None else term.least for term in terms)
    most = max(usable - smallest, 0)
    room = _Room(_on_device(a, run), run, _of_draft(draft))
    shared = room.shared_bytes(run.shared_prefix)
    pages = room.pages if room.is_one_group or not draft else None
    return Served(
        memory, usable, tuple(terms), room_left, most, room.request_bytes(run.length), shared,
        pages and pages.block_bytes, pages and pages.block_tokens,
        pages and room.blocks(room_left), pages and pages.blocks_of(run.length),
        room.requests(room_left), room.requests(most), _longest(room, room_left, a))  # fmt: skip


def _weights(a: Architecture, run: RunConfig) -> list[Term]:
    """Return the weights of a device, less those of layers on the host, and vLLM's RoPE table."""
    a, of_mtp = _without_mtp(a), weight_bytes(a, run) if getattr(a, "n_mtp_layer", 0) else 0
    n_bytes, note = weight_bytes(a, run), ""
    if run.host_layers:
        n_bytes = weight_bytes(_without_layers(a, run), run)
        note = f"without {run.host_layers} layers on the host"
    if run.cache_layout == "cells":  # llama.cpp looks tokens up on the host
        rank: Any = rank_of(a, run.tensor_parallel, run.expert_parallel)
        tied = getattr(rank, "tied", True)
        n_bytes -= 0 if tied else bytes_of(run.dtype) * rank.n_vocab * rank.d_model
    terms = [Term("weights", n_bytes, "exact", note)]
    if of_mtp:
        terms.append(Term("layers that draft", of_mtp - weight_bytes(a, run), "exact", "mtp"))
    if run.cache_layout == "paged" and (scales := scales_bytes(a, run)):
        terms.append(Term("scales in float32", scales, "exact", "vLLM's"))
    if table := rotary_bytes(a, run):
        n_ctx = getattr(a, "n_ctx", 0)
        terms.append(Term("RoPE table", table, "exact", f"vLLM's, n_ctx {n_ctx:,}"))
    return terms


def _without_mtp(a: Architecture) -> Architecture:
    return a.model_copy(update={"n_mtp_layer": 0}) if getattr(a, "n_mtp_layer", 0) else a


def _without_layers(a: Any, run: RunConfig) -> Architecture:
    """Return the model without its layers on the host. Raises ValueError if layers differ."""
    n = run.host_layers
    if n >= a.n_layer:
        raise ValueError(f"host_layers = {n}: allowed: at most {a.n_layer - 1:,}")
    fewer = a.model_copy(update={"n_layer": a.n_layer - n})
    kept = {name for name, count in layer.n_layers(a).items() if count}
    if not hasattr(a, "mlps") or len(kept) > 2:
        raise ValueError("host_layers: known of decoders whose layers are all alike")
    return fewer


def _on_device(a: Architecture, run: RunConfig) -> list[Kind]:
    """Return what the layers on a device keep."""
    here = _without_layers(a, run) if run.host_layers else a
    rank = rank_of(_without_mtp(here), run.tensor_parallel, run.expert_parallel)
    alone = run.model_copy(update={"tensor_parallel": 1, "expert_parallel": 1})
    of_device = kinds(rank, alone)
    if n_ahead := getattr(a, "n_mtp_layer", 0):
        last = vars(own_layers(rank)) | {"n_layer": n_ahead}
        fields = {name: last[name] for name in ("mixers", "mlps", "n_layer", "n_dense_layer")}
        of_device += kinds(rank.model_copy(update=fields), alone)
    n_layers: Counter[Kind] = Counter()
    for kind in of_device:
        n_layers[kind._replace(n_layer=0)] += kind.n_layer
    return [kind._replace(n_layer=n) for kind, n in n_layers.items()]


def _of_draft(draft: Draft | None) -> list[Kind]:
    return _on_device(draft.architecture, draft.run) if draft else []


def _forward(a: Architecture, run: RunConfig) -> Term:
    if run.cache_layout == "cells":
        return compute_buffer(a, run)
    name = f"forward pass of {run.batched_tokens:,} tokens"
    try:
        least, most = forward_bytes(a, run)
    except ValueError as error:
        return Term(name, 0, "bounded", f"{NOT_KNOWN}: {error}", 0)
    return Term(name, most, "bounded", "our modules", least)


def compute_buffer(a: Any, run: RunConfig) -> Term:
    """Return what llama.cpp reserves for the passes of n_ubatch tokens, with flash attention.

    Either logits of all of them in float32, which it reserves whichever are read, next to one state
    of each or two; or the mask in float32 and float16 next to what a layer computes, at most a
    gated MLP and three states. Of logs that it printed the first is 1.0 to 1.01 of the size, where
    it is larger (tests/unit/test_serve.py).
    """
    name, size = f"compute buffer of {run.batched_tokens:,} tokens", 4 * run.batched_tokens
    mixers = getattr(a, "mixers", a.name())
    if not {*mixers.split()} <= {"attention", "sliding_attention"}:
        return Term(name, 0, "bounded", f"{NOT_KNOWN}: llama.cpp's of {mixers}", 0)
    logits, state = size * a.n_vocab, size * a.d_model
    experts = getattr(a, "n_expert_per_token", 0) * getattr(a, "d_expert", 0)
    hidden = size * 2 * max(getattr(a, "d_ff", 0), experts)
    mask = size * run.length * run.batch * 3 // 2
    most = max(logits + 2 * state, mask + hidden + 3 * state)
    return Term(name, most, "bounded", "its logs", logits + state)


class _Room:
    """What requests take of the cache: whole blocks of pages, or bytes.

    A block has the tokens of model and draft where all layers keep all tokens (vLLM's
    UniformTypeKVCacheSpecs).
    """

    def __init__(self, of_model: list[Kind], run: RunConfig, of_draft: list[Kind]):
        self.run, self.kinds, self.draft = run, of_model, of_draft
        both = [*of_model, *of_draft]
        self.is_one_group = not any(kind.state or kind.window for kind in both)
        of_pages = both if self.is_one_group else of_model
        self.pages = pages_of(of_pages, run) if run.cache_layout == "paged" else None

    def request_bytes(self, length: int) -> int:
        """Return the bytes of one request, with those of its draft."""
        of_request = self.run.model_copy(update={"batch": 1, "length": length})
        both = [cache_terms(kinds, of_request) for kinds in (self.kinds, self.draft) if kinds]
        return sum(term.total for terms in both for term in terms.values())

    def shared_bytes(self, prefix: int) -> int:
        """Return the bytes of the blocks of a prefix that all requests share."""
        if not prefix:
            return 0
        if self.pages is None:
            raise ValueError("shared_prefix: needs cache_layout: paged")
        return self.pages.block_bytes * self.pages.shared_blocks(prefix)

    def blocks(self, n_bytes: int) -> int:
        """Return the usable blocks: vLLM keeps one as a placeholder."""
        assert self.pages
        return max(n_bytes // self.pages.block_bytes - 1, 0)

    def requests(self, n_bytes: int, length: int | None = None) -> int:
        """Return how many requests fit."""
        length = self.run.length if length is None else length
        if self.pages:
            n_bytes = self.blocks(n_bytes) * self.pages.block_bytes
        shared = self.shared_bytes(min(self.run.shared_prefix, length))
        of_one = self.request_bytes(length) - shared
        left = n_bytes - shared
        return max(left // of_one, 0) if of_one else 0


def _longest(room: _Room, n_bytes: int, a: Any) -> int:
    """Return the most tokens of `batch` requests that fit, at most the model's positions."""

    def fits(length: int) -> bool:
        return room.requests(n_bytes, length) >= room.run.batch

    is_learned = getattr(a, "position", "") == "learned"
    low, high = 0, a.n_ctx if is_learned else ENDLESS
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def scales_bytes(a: Architecture, run: RunConfig) -> int:
    """Return the bytes by which scales of channels are more in float32, as vLLM holds them."""
    if run.weights not in ("fp8-channel", "int8-channel"):
        return 0
    rank = rank_of(a, run.tensor_parallel, run.expert_parallel)
    rows = sum(n_layer * matrix.n * matrix.d_out for matrix, n_layer in matrices_of(rank))
    return max(4 - bytes_of(run.dtype), 0) * rows
