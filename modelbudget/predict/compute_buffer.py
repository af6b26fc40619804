"""What llama.cpp reserves for the tensors of a pass: its compute buffer.

Its scheduler lays the tensors of a graph out in one buffer and reuses the room of those that no
later operation reads. `configs/compute_buffers.yaml` has the numbers of each part of a layer.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.expressions import LazyValues, expression_of
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, shipped
from modelbudget.components.attention.attention_fields import PLAIN
from modelbudget.predict.cache_bytes import layer_caches
from modelbudget.serving.cache_formats import FLOAT32
from modelbudget.serving.cache_layouts import cells_of
from modelbudget.serving.layers_by_cache import LayerCache

COPIES = 4
"""Of inputs, and of states that the device before passes on, where devices run several passes at
once (GGML_SCHED_MAX_COPIES in ggml/src/ggml-backend.cpp).
"""
OF_OTHERS = {"d_full_head": 0, "attention_gate": False, "position": "rotary", "n_dense_layer": 0}
"""Fields that some families have not."""


class PartsFile(Strict):
    """The file: of each part the least and the most, and expressions that these share."""

    numbers: dict[str, str]
    mixers: dict[str, list[str]]
    mlps: dict[str, list[str]]


_file = shipped(CONFIGS / "compute_buffers.yaml", PartsFile)


class Bounds(NamedTuple):
    """The least and the most numbers of a token, in float32."""

    least: int
    most: int

    def plus(self, least: int, most: int) -> "Bounds":
        return Bounds(self.least + least, self.most + most)


def compute_buffer_bytes(a: Any, run: RunConfig) -> tuple[int, int]:
    """Return the least and the most bytes of passes of `batched_tokens`.

    Either the logits of all slots (`sampled_requests`, at the most also `batch`) next to one state
    of each token or two, or the masks of the cells that tokens attend to next to the tensors of a
    layer. At the least cells are those of one request, at the most of all `batch`, which share them
    (`--kv-unified`, the server's default). Masks are in float16 with flash attention, or else
    (`attention_kernel: math`) in float32 next to the scores of all heads. Versions before June 2026
    (pull requests 23764 and 23861) had the mask in float32, too, and reserved logits of all tokens.
    One of several devices (`pipeline_parallel`) has at the most copies of masks and states. Raises
    ValueError for layers whose graphs were not read.
    """
    if getattr(a, "n_stream", 1) > 1:
        raise ValueError(f"llama.cpp's of {a.n_stream} streams")
    caches = layer_caches(a, run)
    alone = run.model_copy(update={"batch": 1})
    by_window = {cache.window: cache for cache in caches if cache.vectors}.values()
    least = [cells_of(cache, alone) for cache in by_window]
    most = [cells_of(cache, run) for cache in by_window]
    masks, scores = Bounds(sum(least) // 2, sum(most) // 2), Bounds(0, 0)
    if run.attention_kernel == "math":
        n_head = getattr(a, "n_head", 0)
        masks = Bounds(sum(least), sum(most))
        scores = Bounds(n_head * max(least, default=0), n_head * max(most, default=0))
    if run.pipeline_parallel > 1:
        masks = masks.plus(0, (COPIES - 1) * masks.most + 2 * COPIES * a.d_model)
    parts = [*_parts(a, run, scores, _states(caches, run))]
    of_all_layers = getattr(a, "d_per_layer", 0) * a.n_layer  # Gemma 4's inputs of each layer
    masks = masks.plus(of_all_layers, 2 * of_all_layers)
    layer = masks.plus(*map(max, zip(*parts, strict=True)))
    slots = run.sampled_requests, max(run.sampled_requests, run.batch)
    logits = [FLOAT32 * min(n, run.batched_tokens) * a.n_vocab for n in slots]
    state = FLOAT32 * run.batched_tokens
    return (
        max(logits[0] + state * a.d_model, state * layer.least),
        max(logits[1] + 2 * state * a.d_model, state * layer.most),
    )


def _parts(a: Any, run: RunConfig, scores: Bounds, states: int) -> Iterator[Bounds]:
    """Yield the numbers of a token in each kind of mixer and of MLP. Raises ValueError."""
    file, fields = _file(), OF_OTHERS | vars(a)
    mixers, mlps = fields.get("mixers", a.name()), {*fields.get("mlps", "mlp").split()}
    known = fields | {"least_scores": scores.least, "most_scores": scores.most, "states": states}
    values = LazyValues(lambda name: expression_of(file.numbers[name])(values), known)
    of_mixers = {"attention" if name in PLAIN else name for name in mixers.split()}
    if unknown := of_mixers - file.mixers.keys():
        raise ValueError(f"llama.cpp's of {', '.join(sorted(unknown))}")
    if "mla" in of_mixers and (a.n_index_head or run.mla_cache == "heads"):
        how = "an indexer" if a.n_index_head else "keys of all heads"
        raise ValueError(f"llama.cpp's of mla with {how}")
    of_experts = "moe" if "moe" in mlps else "moe_branch"
    of_mlps = ["shared", of_experts] * (fields.get("n_expert", 0) > 0)
    of_mlps += ["mlp"] * ("mlp" in mlps or not mlps or fields["n_dense_layer"] > 0)
    of_parts = [*(file.mixers[name] for name in of_mixers), *(file.mlps[name] for name in of_mlps)]
    for texts in of_parts:
        yield Bounds(*(expression_of(text)(values) for text in texts))


def _states(caches: list[LayerCache], run: RunConfig) -> int:
    """Return the numbers of all requests' states of a layer, for each batched token."""
    largest = max((cache.state for cache in caches), default=0)
    return ceil_div(run.batch * (1 + run.drafted_tokens) * largest, FLOAT32 * run.batched_tokens)
