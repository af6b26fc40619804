"""Caches in other formats and layouts than those of our modules, of one model."""

from functools import lru_cache

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Terms
from modelbudget.serving.cache_formats import ENGINES, state_bytes
from modelbudget.serving.cache_layouts import cache_terms
from modelbudget.serving.layers_by_cache import LayerCache, layer_caches_of

INDEXER = ("n_index_head", "d_index", "n_selected")
"""Sizes that models without an indexer have not."""


def is_of_engine(r) -> bool:
    """Whether the cache has another format or layout than that of our modules."""
    return r.cache_dtype != "dtype" or r.cache_layout != "contiguous"


def layer_caches(a: Architecture, run: RunConfig) -> list[LayerCache]:
    """Return what the layers of a model keep. Raises ValueError if no formula covers it."""
    of_one_token = {"batch": 1, "length": 1, "target_length": 0, "cache_growth": "in_place"}
    for_one_token = run.model_copy(update=of_one_token)
    return list(_layer_caches(a, for_one_token))


@lru_cache(maxsize=64)
def _layer_caches(a: Architecture, run: RunConfig) -> list[LayerCache]:
    def terms(run: RunConfig) -> Terms:
        if type(a).has_formula_for("cache_bytes", a, run):
            return type(a).cache_bytes(a, run)  # pyrefly: ignore[missing-attribute]
        from modelbudget.predict.by_program import terms_by_program  # most models need no program

        of_model = terms_by_program("cache_bytes", a, run)
        if of_model is None:
            keeps = "no formula covers the cache of these layers"
            keeps_none = not a.has_cache or a.reads_all_at_once
            raise ValueError(f"{a.name()} keeps no cache to serve from" if keeps_none else keeps)
        return of_model

    d_index = getattr(a, "d_index", 0)
    if d_index and run.cache_layout in ENGINES:  # they keep an indexer's keys next to latents
        without = layer_caches(a.model_copy(update=dict.fromkeys(INDEXER, 0)), run)
        if run.cache_layout == "paged":
            return [cache._replace(d_index=d_index) for cache in without]
        key = (1, d_index, False)  # in the cache's format (llama.cpp's llama-kv-cache-dsa.cpp)
        return [cache._replace(vectors=(*cache.vectors, key)) for cache in without]
    of_model = layer_caches_of(a, run, terms)
    mixers = {*vars(a).get("mixers", "").split()}
    if run.cache_layout == "cells" and mixers == {"sliding_attention"}:
        # llama.cpp has windows next to full layers alone: none in Mistral 7B or StarCoder2
        of_model = [cache._replace(window=0) for cache in of_model]
    states = [cache for cache in of_model if cache.state]
    if not states or run.cache_layout not in ENGINES:
        return of_model
    parts = {part for cache in states for part in cache.name.split(".")}
    with_states = parts & mixers or {a.name()}
    every = max(states, key=lambda cache: cache.n_layer)  # others have states of one layer alone
    of_engine = every._replace(state=state_bytes(a.name(), with_states, vars(a), run))
    return [*(cache for cache in of_model if not cache.state), of_engine]


def terms_of_engine(a: Architecture, run: RunConfig) -> Terms:
    """Return the bytes of the cache of `batch` sequences. Raises ValueError if none are known."""
    return cache_terms(layer_caches(a, run), run)
