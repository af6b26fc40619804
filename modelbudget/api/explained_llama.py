"""Caches and recurrent states of llama.cpp, from the sizes that its own log prints."""

from __future__ import annotations

from modelbudget.api.explained import Line, judged
from modelbudget.api.log_context import LogContext
from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.files.log_lines import Number
from modelbudget.predict.cache_bytes import layer_caches
from modelbudget.serving.cache_formats import cache_formats, state_numbers

LLAMA_TYPES = {"f16": "float16", "f32": "float32", "bf16": "bfloat16"}
SIZES_OF_STATE = {
    "d_inner": "ssm_d_inner", "d_state": "ssm_d_state", "n_group": "ssm_n_group",
    "d_convolution": "ssm_d_conv",
}  # fmt: skip


def llama_cache(context: LogContext, number: Number, printed: str) -> Line:
    """llama.cpp's cache, from sizes that its own log prints, or those of the model."""
    settings = context.log.settings
    n_layer = context.number("cache_layers") or context.number("n_layer")
    cells = context.number("cells") or context.number("length")
    widths = [context.number(f"{side}_width") for side in ("k", "v")]
    if context.pair and not all(widths):
        (first, *_) = layer_caches(*context.pair)
        n = sum(heads * width for heads, width, _ in first.vectors)
        widths = [n // 2, n - n // 2]
        n_layer = n_layer or first.n_layer
    for value, name in ((n_layer, "n_layer"), (cells, "n_ctx"), (all(widths), "n_embd_k_gqa")):
        if not value:
            context.ask(f"a line with {name}, or --model NAME")
            return Line("cache", printed, "", "asked", number.n_bytes, 0, number.line)
    terms = []
    for what, type_name, width in zip(
        ("keys", "values"), ("k_type", "v_type"), widths, strict=True
    ):
        word = settings.get(type_name, "f16")
        known = cache_formats().get(LLAMA_TYPES.get(word, word))
        if known is None:
            context.ask(f"a known type of the cache, not {word}")
            return Line("cache", printed, "", "asked", number.n_bytes, 0, number.line)
        assert n_layer
        assert cells
        assert width
        numbers = known.numbers or 1
        of_row = ceil_div(width, numbers) * (ceil_div(numbers * known.bits, 8) + known.scale_bytes)
        terms.append((f"{what} {word}", n_layer * cells * of_row))
    name = f"cache, {cells:,} cells, {n_layer} layers"
    return judged(name, printed, number.n_bytes, number.rounding, number.line, terms)


def llama_states(context: LogContext, number: Number, printed: str) -> Line:
    """Recurrent states, from the sizes of Mamba-2 by which llama.cpp describes all but RWKV.

    Layers with keys and values have none, but where all layers have both.
    """
    cells, n_layer = context.number("state_cells"), context.number("n_layer")
    with_keys = context.number("cache_layers") or 0
    sizes = {name: context.number(printed) for name, printed in SIZES_OF_STATE.items()}
    if not cells or not n_layer or None in sizes.values():
        context.ask("lines with n_layer, ssm_d_conv, ssm_d_inner, ssm_d_state and ssm_n_group")
        return Line("states", printed, "", "asked", number.n_bytes, 0, number.line)
    n = n_layer - with_keys if with_keys < n_layer else n_layer
    rows = cells * (1 + (context.number("rs_seq") or 0))  # snapshots for drafts
    terms = [
        (what, 4 * n * rows * numbers)
        for what, numbers in zip(
            ("R f32", "S f32"), state_numbers("state-space-dual", sizes), strict=True
        )
    ]
    name = f"states, {cells:,} sequences, {n} of {n_layer} layers"
    return judged(name, printed, number.n_bytes, number.rounding, number.line, terms)
