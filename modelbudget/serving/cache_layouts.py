"""Bytes of a cache as who serves it allocates it.

Sources: transformers 5.23, `cache_utils.py`; vLLM 0.32, `v1/core/kv_cache_utils.py` and
`v1/kv_cache_interface.py`; llama.cpp, `llama-kv-cache.cpp`, `llama-kv-cache-iswa.cpp` and
`llama-memory-recurrent.cpp`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import INDEX, target_tokens
from modelbudget.architecture.terms import Term, Terms, merged
from modelbudget.serving.layers_by_cache import LayerCache

CELLS = 256
"""Cells of llama.cpp's caches are multiples of this."""
TOKENS_OF_LATENTS = 128
"""Blocks of MLA next to states are multiples of this (vLLM, platforms/interface.py, where kernels
read 128 tokens at once; 64 in models/config.py of versions before Kimi K3's).
"""


def cache_terms(caches: Sequence[LayerCache], run: RunConfig) -> Terms:
    """Return the bytes of the cache of `batch` sequences of `length` tokens, by group of layers.

    Of pages, one term: the bytes of a block times the blocks. Raises ValueError.
    """
    if run.cache_layout == "paged":
        pages = pages_of(caches, run)
        blocks = pages.blocks_of(run.length, target_tokens(run))
        return {"blocks": Term(pages.block_bytes, run.batch * blocks)}
    if run.cache_layout == "cells" and any(cache.of_source for cache in caches):
        raise ValueError(
            "cache_layout = cells: llama.cpp computes keys and values of a source again for each "
            "token, and keeps none; allowed: paged, dynamic, static, contiguous"
        )
    if run.cache_layout == "cells" and run.attention_kernel == "math":
        caches = _with_widest_values(caches)
    n_drafted = run.drafted_tokens if run.cache_layout == "cells" else 0  # which llama.cpp keeps
    terms: Terms = {}
    for cache in caches:
        of_states = (1 + n_drafted) * run.batch * cache.state
        n_bytes = _tokens_bytes(cache, run) + of_states + _counts(cache, run)
        terms = merged(terms, {cache.name: Term(n_bytes, cache.n_layer)})
    return terms


def _tokens_bytes(cache: LayerCache, run: RunConfig) -> int:
    """Return the bytes of the tokens that a layer keeps of all sequences."""
    if not cache.vectors:
        return 0
    if run.cache_layout == "cells":
        return cells_of(cache, run) * cache.token_bytes(run)
    n = run.length if cache.of_source else target_tokens(run)
    # Of a prompt transformers' layer keeps a view of all keys, of a window of 1 the keys [-0:].
    layouts_of_all = ("dynamic-prompt", "dynamic") if cache.window == 1 else ("dynamic-prompt",)
    if cache.window and run.cache_layout not in layouts_of_all:
        n = min(n, cache.window)
    n_unquantised = min(run.cache_unquantised, n)
    quantised, plain = cache.token_bytes(run), cache.token_bytes(run, "dtype")
    return run.batch * ((n - n_unquantised) * quantised + n_unquantised * plain)


def cells_of(cache: LayerCache, run: RunConfig) -> int:
    """Return the cells of a layer of llama.cpp, which all sequences share (`kv_unified`).

    Of windows those of each sequence, and of one batch that is written before tokens are dropped.
    """
    n = run.batch * target_tokens(run)
    if cache.window:
        n = min(n, run.batch * cache.window + run.batched_tokens)
    return ceil_div(n, CELLS) * CELLS


def _with_widest_values(caches: Sequence[LayerCache]) -> list[LayerCache]:
    """Return caches whose values are as wide as the widest, as llama.cpp's without flash attention.

    `n_embd_v_gqa_max` in its llama-kv-cache.cpp; next to latents there are no values.
    """
    values = {cache: cache.vectors[1] for cache in caches if len(cache.vectors) == 2}
    widths = {cache: n * width for cache, (n, width, is_rotary) in values.items() if not is_rotary}
    widest = ((1, max(widths.values(), default=0), False),)
    return [
        cache._replace(vectors=cache.vectors[:1] + widest) if cache in widths else cache
        for cache in caches
    ]


def _counts(cache: LayerCache, run: RunConfig) -> int:
    """Return the bytes of the count of tokens that transformers keeps in a layer."""
    has_count = run.cache_layout == "static" or (
        run.cache_layout.startswith("dynamic") and cache.window
    )
    return INDEX if has_count and cache.vectors else 0


class Group(NamedTuple):
    """Layers whose blocks a request takes together; `n_state`: of states, one block for each.

    `of_source`: of cross-attention, whose tokens are those of a source.
    """

    block: int
    window: int
    n_state: int = 0
    of_source: bool = False
    in_chunks: bool = False

    def blocks_of(self, length: int, batched_tokens: int) -> int:
        """Return the blocks that one request of a length takes."""
        if self.n_state:
            return self.n_state
        if not self.window:
            return ceil_div(length, self.block)
        if self.in_chunks:  # ChunkedLocalAttentionSpec.max_memory_usage_bytes
            return ceil_div(min(self.window + batched_tokens, length), self.block)
        kept = min(self.window - 1 + batched_tokens, length)
        return ceil_div(kept, self.block) + 1  # the window may begin inside of a block

    def shared_of(self, prefix: int, length: int) -> int:
        """Return the whole blocks of a prefix that requests of a length still need.

        vLLM frees those before the window (`get_num_skipped_tokens` in
        v1/core/single_type_kv_cache_manager.py).
        """
        if self.n_state:
            return 0
        if not self.window:
            skipped = 0
        elif self.in_chunks:
            skipped = length // self.window * self.window
        else:
            skipped = max(length - self.window + 1, 0)
        return max(prefix // self.block - skipped // self.block, 0)


class Pages(NamedTuple):
    """The pool of vLLM's blocks: all have the same bytes, and each group of layers takes some."""

    block_bytes: int
    groups: tuple[Group, ...]
    batched_tokens: int

    @property
    def block_tokens(self) -> int | None:
        """The tokens of a block; None of states alone."""
        return next((group.block for group in self.groups if not group.n_state), None)

    def blocks_of(self, length: int, n_target: int = 0) -> int:
        """Return the blocks of one request of a length, of all groups.

        `n_target`: tokens of the target, where `length` is that of a source.
        """
        return sum(
            group.blocks_of(length if group.of_source else n_target or length, self.batched_tokens)
            for group in self.groups
        )

    def shared_blocks(self, prefix: int, length: int) -> int:
        """Return the blocks of a prefix that several requests of a length share.

        Whole ones, but those that have left a window.
        """
        return sum(group.shared_of(prefix, length) for group in self.groups)


def pages_of(caches: Sequence[LayerCache], run: RunConfig) -> Pages:
    """Return the pages of a model's layers. Raises ValueError where vLLM has no plan for them.

    Layers that keep all tokens are one group. Others are divided into groups of one size: the
    fewest layers of a cache, or the most if that is less than 1.5 times as many, so that a few are
    wasted; layers that read a source are groups of their own (`CrossAttentionSpec`). Pages of a
    state are as large as those of keys and values, whose blocks grow for it. Drafted tokens have a
    state of their own, and prefix caching keeps one more, which models of states alone are without
    (`MambaSpec.max_memory_usage_bytes`).
    """
    caches = _with_states_together(caches)
    pages = [cache.token_bytes(run) for cache in caches]
    of_tokens = [n for cache, n in zip(caches, pages, strict=True) if cache.vectors]
    states = [cache.state for cache in caches if cache.state]
    block = run.cache_block
    if of_tokens and states:
        block = _block_with_states(caches, max(states), max(of_tokens), block)
    if not states and not any(cache.window or cache.of_source for cache in caches):
        n_bytes = sum(cache.n_layer * n for cache, n in zip(caches, pages, strict=True))
        return Pages(block * n_bytes, (Group(block * run.context_parallel, 0),), run.batched_tokens)
    if run.context_parallel > 1:
        raise ValueError(
            f"context_parallel = {run.context_parallel}: vLLM divides no windows, states or "
            "sources; allowed: 1"
        )
    page = max([block * n for n in of_tokens] or states)
    counts = [cache.n_layer for cache in caches]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    n_kept = run.cached_states if of_tokens else 1
    groups: list[Group] = []
    for cache, n in zip(caches, pages, strict=True):
        if cache.vectors and page % n:
            raise ValueError(f"pages of {cache.name} do not divide those of other layers")
        tokens_of_page = page // n if cache.vectors else block
        n_state = 0 if cache.vectors else n_kept + run.drafted_tokens
        groups += ceil_div(cache.n_layer, size) * [
            Group(tokens_of_page, cache.window, n_state, cache.of_source, cache.in_chunks)
        ]
    return Pages(size * page, tuple(groups), run.batched_tokens)


def _block_with_states(
    caches: Sequence[LayerCache], state: int, token_bytes: int, block: int
) -> int:
    """Return the tokens of a page that holds a state, too."""
    is_latent = any(is_rotary for cache in caches for *_, is_rotary in cache.vectors)
    multiple = max(block, TOKENS_OF_LATENTS) if is_latent else block
    return ceil_div(ceil_div(state, token_bytes), multiple) * multiple


def _with_states_together(caches: Sequence[LayerCache]) -> list[LayerCache]:
    """Return caches of which as many layers have one state, of all that they keep."""
    states: dict[int, int] = {}
    for cache in caches:
        if cache.state:
            states[cache.n_layer] = states.get(cache.n_layer, 0) + cache.state
    of_tokens = [cache for cache in caches if not cache.state]
    return [*of_tokens, *(LayerCache("state", n_layer, state=n) for n_layer, n in states.items())]
