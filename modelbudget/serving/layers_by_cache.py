"""Layers grouped by what they keep: of each token, of a window of tokens, or a state."""

from collections.abc import Callable
from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import bytes_of
from modelbudget.architecture.terms import Terms
from modelbudget.serving.cache_formats import FLOAT32, vector_bytes

INDEX_BLOCK = 128
"""Channels of an indexer's key that share a scale."""
FAR = 2**40
"""Tokens that are more than any window has."""


class LayerCache(NamedTuple):
    """The cache of one sequence in each of `n_layer` layers that keep the same.

    `vectors`: heads of a token that a layer keeps, of keys and of values, or of MLA's latent and
    its rotary key: their number, their width, and whether they are that key. `window`: tokens of
    which it keeps them; 0: of all. `state`: bytes that depend on no token. `in_chunks`: its windows
    are chunks, which begin at multiples of `window`. `d_index`: channels of the key of an indexer,
    in FP8 with a float32 scale for 128 of them (vLLM's models/deepseek_v2.py,
    DeepseekV32IndexerCache).
    """

    name: str
    n_layer: int
    vectors: tuple[tuple[int, int, bool], ...] = ()
    window: int = 0
    state: int = 0
    in_chunks: bool = False
    d_index: int = 0

    @property
    def of_source(self) -> bool:
        """Whether its tokens are those of a source, which cross-attention reads."""
        return self.name.endswith(".cross")

    def token_bytes(self, run: RunConfig, cache_dtype: str | None = None) -> int:
        """Return the bytes of one token in one layer. Raises ValueError."""
        name = run.cache_dtype if cache_dtype is None else cache_dtype
        of_vectors = sum(
            heads * vector_bytes(name, run.dtype, width, is_rotary)
            for heads, width, is_rotary in self.vectors
        )
        return of_vectors + self.d_index + FLOAT32 * ceil_div(self.d_index, INDEX_BLOCK)


def layer_caches_of(
    a: Architecture, run: RunConfig, cache_terms: Callable[[RunConfig], Terms]
) -> list[LayerCache]:
    """Return what the layers keep, read off the formula of the cache at a few lengths.

    Bytes that grow with each token are keys and values, which a window bounds; the others are
    states. `cache_terms`: from a run to the terms of its cache. Raises ValueError.
    """
    one_sequence = run.model_copy(
        update={"batch": 1, "cache_dtype": "dtype", "cache_layout": "contiguous",
                "cache_unquantised": 0})  # fmt: skip

    def each(length: int) -> dict[str, tuple[int, int]]:
        terms = cache_terms(one_sequence.model_copy(update={"length": length}))
        return {name: (term.each, term.instances) for name, term in terms.items()}

    first, second, far = each(1), each(2), each(FAR)
    caches: list[LayerCache] = []
    states: list[LayerCache] = []
    for name, (n_bytes, n_layer) in first.items():
        if not n_bytes or not n_layer:
            continue
        is_window = name.endswith(".window")  # of one token it does not grow
        of_token = second[name][0] - n_bytes or is_window * n_bytes
        state = n_bytes - of_token
        if state:
            states.append(LayerCache(name, n_layer, state=state))
        if of_token:
            window = (far[name][0] - state) // of_token
            has_window = window < FAR
            vectors = _vectors(a, of_token // bytes_of(run.dtype), has_window, run.mla_cache)
            in_chunks = has_window and getattr(a, "window_in_chunks", False)
            caches.append(LayerCache(name, n_layer, vectors, window * has_window, 0, in_chunks))
    return [*caches, *states]


def _vectors(
    a: Any, numbers: int, has_window: bool, mla_cache: str
) -> tuple[tuple[int, int, bool], ...]:
    """Divide the numbers that a layer keeps of a token into heads."""
    latent, rotary = getattr(a, "kv_lora_rank", 0), getattr(a, "d_rope", 0)
    if latent and numbers == latent + rotary:
        if mla_cache == "heads":
            return ((a.n_head, a.d_nope + rotary, False), (a.n_head, a.d_value, False))
        return ((1, latent, False), (1, rotary, True))
    width, d_value = getattr(a, "d_head", 0), getattr(a, "d_value", 0)
    if d_value not in (0, width) and not latent:  # heads of encoders
        heads = numbers // (width + d_value)
        return ((heads, width, False), (heads, d_value, False))
    width = width if has_window else getattr(a, "d_full_head", 0) or width
    if not width or numbers % (2 * width):
        return ((1, numbers, False),)
    return ((numbers // (2 * width), width, False),) * 2
