"""What llama.cpp reserves for the tensors of a pass: its compute buffer.

Its scheduler lays the tensors of a graph out in one buffer and reuses the room of those that no
later operation reads. The least of a part of a layer is the sum of its tensors that live together;
the most has those that lie between them, too, since a hole is reused only by what fits into it.
Source: ggml-org/llama.cpp at 0c1e570, src/llama-graph.cpp, the files of src/models, and
ggml/src/ggml-alloc.c. `tests/golden/compute_buffers.csv` has what that version reserves.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.run_config import RunConfig
from modelbudget.components.attention.attention_fields import PLAIN
from modelbudget.predict.cache_bytes import layer_caches
from modelbudget.serving.cache_formats import FLOAT32
from modelbudget.serving.cache_layouts import cells_of
from modelbudget.serving.layers_by_cache import LayerCache


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
    Raises ValueError for layers whose graphs were not read.
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
    parts = [*_mixers(a, run, scores, _states(caches, run)), *_mlps(a)]
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


def _mixers(a: Any, run: RunConfig, scores: Bounds, states: int) -> Iterator[Bounds]:
    """Yield the numbers of a token in each kind of mixer. Raises ValueError."""
    mixers, d = vars(a).get("mixers", a.name()), a.d_model
    for name in {*mixers.split()}:
        if name in PLAIN:
            width = max(a.d_head, getattr(a, "d_full_head", 0))
            query, keys = a.n_head * width, a.n_kv_head * width
            gate = query if getattr(a, "attention_gate", False) else 0
            queries = 2 * query + gate
            least = queries + (2 * d if getattr(a, "position", "rotary") == "rotary" else d)
            yield scores.plus(least, queries + gate + 2 * keys + 7 * d)
        elif name == "mla" and (a.n_index_head or run.mla_cache == "heads"):
            how = "an indexer" if a.n_index_head else "keys of all heads"
            raise ValueError(f"llama.cpp's of mla with {how}")
        elif name == "mla":
            query = a.n_head * (a.d_nope + a.d_rope)
            absorbed = 2 * a.n_head * (a.kv_lora_rank + a.d_rope)
            yield scores.plus(absorbed + 2 * d, absorbed + query + 6 * d)
        elif name == "gated_deltanet":
            values = a.n_linear_head * a.d_linear_value
            convolved = 3 * (values + 2 * a.n_linear_key_head * a.d_linear_key)
            yield Bounds(convolved + 2 * d, convolved + values + 4 * d + states)
        elif name == "mamba2":
            inner = a.n_mamba_head * a.d_mamba_head
            convolved = inner + 2 * a.n_mamba_group * a.d_mamba_state
            projected = inner + convolved + a.n_mamba_head
            least = projected + 3 * convolved + inner
            yield Bounds(least, least + 3 * d + states)
        elif name == "short_convolution":
            yield Bounds(6 * d, 8 * d)
        elif name != "none":
            raise ValueError(f"llama.cpp's of {mixers}")


def _states(caches: list[LayerCache], run: RunConfig) -> int:
    """Return the numbers of all requests' states of a layer, for each batched token."""
    largest = max((cache.state for cache in caches), default=0)
    return ceil_div(run.batch * (1 + run.drafted_tokens) * largest, FLOAT32 * run.batched_tokens)


def _mlps(a: Any) -> Iterator[Bounds]:
    """Yield the numbers of a token in each kind of MLP.

    Gate, up and their product lie in a row, of which versions of 2024 had two; the results of all
    chosen experts replace the first two if they fit there. Without a gate the activation is
    computed in place.
    """
    mlps, d, n_hidden = {*getattr(a, "mlps", "mlp").split()}, a.d_model, 3 if a.gated else 1
    widths = [a.d_ff] if "mlp" in mlps or not mlps or getattr(a, "n_dense_layer", 0) else []
    if "moe" in mlps:
        widths.append(a.d_shared)
        hidden, results = a.n_expert_per_token * a.d_expert, a.n_expert_per_token * d
        replaces = a.gated and results <= 2 * hidden
        least = n_hidden * hidden + 3 * d
        yield Bounds(least if replaces else least + results, least + results + 4 * d)
    for width in widths:
        yield Bounds(min(n_hidden, 2) * width + 2 * d, n_hidden * width + 5 * d)
