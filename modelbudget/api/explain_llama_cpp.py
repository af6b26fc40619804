"""Caches and recurrent states of llama.cpp, from the sizes that its own log prints."""

from modelbudget.api.explained import Line
from modelbudget.api.log_context import Reading
from modelbudget.architecture.run_config import OF_CACHES
from modelbudget.predict.cache_bytes import layer_caches
from modelbudget.serving.cache_formats import cache_formats, state_numbers, vector_bytes

SIZES_OF_STATE = {
    "d_inner": "ssm_d_inner", "d_state": "ssm_d_state", "n_group": "ssm_n_group",
    "d_convolution": "ssm_d_conv",
}  # fmt: skip


def llama_cache(reading: Reading) -> Line:
    """llama.cpp's cache, from sizes that its own log prints, or those of the model.

    Each stream of sequences has cells of its own where they are not unified.
    """
    context = reading.context
    n_layer = reading.count("cache_layers") or reading.count("n_layer")
    cells = reading.count("cells") or reading.count("length")
    streams = reading.count("streams") or 1
    widths = [reading.count(f"{side}_width") for side in ("k", "v")]
    if context.pair and not all(widths):
        (first, *_) = layer_caches(*context.pair)
        n = sum(heads * width for heads, width, _ in first.vectors)
        widths = [n // 2, n - n // 2]
        n_layer = n_layer or first.n_layer
    for value, name in ((n_layer, "n_layer"), (cells, "n_ctx"), (all(widths), "n_embd_k_gqa")):
        if not value:
            return reading.asked("cache", f"a line with {name}, or `model=NAME`")
    terms = []
    for what, type_name, width in zip(
        ("keys", "values"), ("k_type", "v_type"), widths, strict=True
    ):
        word = reading.setting(type_name) or "f16"
        if (name := OF_CACHES["names"].get(word, word)) not in cache_formats().formats:
            return reading.asked("cache", f"a known type of the cache, not {word}")
        of_row = vector_bytes(name, name, width or 0)
        terms.append((f"{what} {word}", streams * (n_layer or 0) * (cells or 0) * of_row))
    of_streams = f"{streams} × " if streams > 1 else ""
    return reading.judged(f"cache, {of_streams}{cells:,} cells, {n_layer} layers", *terms)


def llama_states(reading: Reading) -> Line:
    """Recurrent states, from the sizes of Mamba-2 by which llama.cpp describes all but RWKV.

    Layers with keys and values have none, but where all layers have both.
    """
    context = reading.context
    cells, n_layer = context.number("state_cells"), context.number("n_layer")
    with_keys = context.number("cache_layers") or 0
    sizes = {name: context.number(printed) for name, printed in SIZES_OF_STATE.items()}
    if not cells or not n_layer or None in sizes.values():
        lines = "lines with n_layer, ssm_d_conv, ssm_d_inner, ssm_d_state and ssm_n_group"
        return reading.asked("states", lines)
    n = n_layer - with_keys if with_keys < n_layer else n_layer
    rows = cells * (1 + (context.number("rs_seq") or 0))  # snapshots for drafts
    numbers = state_numbers("state-space-dual", sizes)
    terms = [
        (what, 4 * n * rows * of_state)
        for what, of_state in zip(("R f32", "S f32"), numbers, strict=True)
    ]
    return reading.judged(f"states, {cells:,} sequences, {n} of {n_layer} layers", *terms)
