"""Explains logs of engines and trainers, number by number."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from modelbudget.api.explained import Explained, Line, distinct, gib, judged
from modelbudget.api.explained_llama import llama_cache, llama_states
from modelbudget.api.log_context import LogContext
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.files.log_lines import Number, read_log
from modelbudget.predict.cache_bytes import layer_caches
from modelbudget.predict.engine_weights import rank_of, rotary_bytes, scales_bytes, weight_bytes
from modelbudget.serving.cache_layouts import Pages, pages_of

OF_MODEL = {"weights", "cache room", "cache tokens", "cache blocks", "keys", "values", "trained",
            "cache of a table", "all parameters", "peak", "device in use",
            "weights and optimizer"}  # fmt: skip
"""Quantities whose formula needs the model."""


def of_log(path: Path, model: str | None, chosen: dict[str, Any]) -> Explained:
    """Explain the numbers of a log. Raises InputError."""
    log = read_log(path)
    context = LogContext(log, model, chosen)
    if context.model is None and any(number.quantity in OF_MODEL for number in log.numbers):
        printed = log.settings.get("model")
        named = f", {printed} is not in `modelbudget models`" if printed else ""
        context.ask(f"--model NAME: a published model or a config.json{named}")
    lines = distinct(_lines(context))
    about = context.model.label if context.model else "no model"
    title = f"{', '.join(log.tools)}; {about}"
    if context.pair and context.pair[1].tensor_parallel > 1:
        title += f", one of {context.pair[1].tensor_parallel} devices"
    capacity = next((of.text for of in log.numbers if of.quantity == "capacity"), None)
    name = context.model.name if context.model else "MODEL"
    fits = f"what fits: modelbudget {name} --fit {capacity}GiB --batch N --length N"
    return Explained(path, title, lines, tuple(context.asked), fits if capacity else "")


def _lines(context: LogContext) -> Iterator[Line]:
    for number in context.log.numbers:
        unit = "" if number.unit in ("x", "parameters", "tokens", "blocks") else f" {number.unit}"
        printed = f"{number.text}{unit}"
        rule = _RULES.get(number.quantity, _read)
        if number.quantity in OF_MODEL and context.pair is None:
            yield Line(number.quantity, printed, "", "asked", _bytes(number), 0, number.line)
        else:
            try:
                yield rule(context, number, printed)
            except ValueError as error:  # no formula covers it
                context.ask(str(error))
                yield Line(number.quantity, printed, "", "asked", _bytes(number), 0, number.line)


def _bytes(number: Number) -> int:
    return number.n_bytes if number.unit in ("GiB", "MiB", "KiB", "GB", "MB", "bytes") else 0


def _read(context: LogContext, number: Number, printed: str) -> Line:
    name = number.name or number.quantity
    return Line(name, printed, "of the tool itself", "read", _bytes(number), 0, number.line)


def _pair(context: LogContext) -> tuple[Architecture, RunConfig]:
    assert context.pair is not None
    if context.asks_dtype:
        context.ask("--set dtype=…: bfloat16 is taken")
    return context.pair


def _weights(context: LogContext, number: Number, printed: str) -> Line:
    """Weights of one device; vLLM's with its RoPE table, and with float32 scales of channels."""
    a, run = _pair(context)
    if run.weights == "unknown":
        context.ask("--set weights=…: a known format")
        return Line("weights", printed, "", "asked", number.n_bytes, 0, number.line)
    terms = [(run.weights if run.weights != "dtype" else run.dtype, weight_bytes(a, run))]
    if scales := scales_bytes(a, run):
        terms.append(("float32 scales", scales))
    if number.tool == "vLLM" and (table := rotary_bytes(a, run)):
        terms.append(("RoPE table", table))
        if "n_ctx" not in context.chosen and context.model and not context.model.base.config:
            context.ask("--set n_ctx=…: positions of the RoPE table (max_position_embeddings)")
    return judged("weights", printed, number.n_bytes, number.rounding, number.line, terms)


def _pages(context: LogContext) -> Pages:
    a, run = _pair(context)
    rank = rank_of(a, run.tensor_parallel, 1)
    return pages_of(layer_caches(rank, run.model_copy(update={"tensor_parallel": 1})), run)


def _token_bytes(context: LogContext) -> int:
    a, run = _pair(context)
    rank = rank_of(a, run.tensor_parallel, 1)
    caches = layer_caches(rank, run.model_copy(update={"tensor_parallel": 1}))
    return sum(cache.n_layer * cache.token_bytes(run) for cache in caches)


def _cache_room(context: LogContext, number: Number, printed: str) -> Line:
    """Bytes for the cache: the blocks that the log counts, and less than one block more."""
    pages = _pages(context)
    blocks, tokens = context.of("cache blocks"), context.of("cache tokens")
    n = blocks.n_bytes if blocks else None
    if n is None and tokens and len(pages.groups) == 1:
        n = tokens.n_bytes // (pages.block_tokens or 1)
    if n is None:
        n = number.n_bytes // pages.block_bytes
        text = f"room for {n:,} × {gib(pages.block_bytes)}"
        return Line("cache", printed, text, "read", number.n_bytes, 0, number.line)
    return _counted(f"cache, {n:,} blocks", number, printed, n, pages.block_bytes, "blocks")


def _counted(name: str, number: Number, printed: str, n: int, each: int, what: str) -> Line:
    """Return the line of a number that is n times a size, and less than one more."""
    text = f"{n:,} × {gib(each)}"
    over = number.n_bytes - n * each
    if -number.rounding <= over < each + number.rounding:
        return Line(name, printed, text, "exact", number.n_bytes, 0, number.line)
    return judged(name, printed, number.n_bytes, number.rounding, number.line,
                  [(f"{n:,} {what}", n * each)])  # fmt: skip


def _cache_tokens(context: LogContext, number: Number, printed: str) -> Line:
    """Tokens that the cache holds: whole blocks of the bytes that the log prints."""
    if number.tool == "SGLang":
        n_bytes, keys = number.n_bytes * _token_bytes(context), context.of("keys")
        text = f"{gib(n_bytes)} of {gib(_token_bytes(context))} each"
        if keys is None:
            return Line("tokens of the cache", printed, text, "read", n_bytes, 0, number.line)
        unexplained = abs(n_bytes // 2 - keys.n_bytes)
        verdict = "exact" if unexplained <= keys.rounding else "unexplained"
        unexplained = 0 if verdict == "exact" else unexplained
        return Line(
            "tokens of the cache", printed, text, verdict, n_bytes, unexplained, number.line
        )
    pages, room = _pages(context), context.of("cache room")
    if room is None:
        context.ask("a line with the bytes for the cache (Available KV cache memory)")
        return Line("tokens", printed, "", "asked", 0, 0, number.line)
    least = (room.n_bytes - room.rounding) // pages.block_bytes
    most = (room.n_bytes + room.rounding) // pages.block_bytes
    if len(pages.groups) > 1:
        return _tokens_of_groups(context, number, printed, pages, (least, most))
    n, more = divmod(number.n_bytes, pages.block_tokens or 1)
    text = f"{n:,} × {pages.block_tokens}" + (f" and {more} more" if more else "")
    if least <= n <= most and not more:
        text += f" of {least:,} to {most:,} blocks in {room.text} {room.unit}"
        return Line("tokens", printed, text, "exact", 0, 0, number.line)
    unexplained = abs(n - (least + most) // 2) * pages.block_bytes
    text += f", where {room.text} {room.unit} hold {least:,} to {most:,} blocks"
    return Line("tokens", printed, text, "unexplained", unexplained, unexplained, number.line)


def _tokens_of_groups(
    context: LogContext, number: Number, printed: str, pages: Pages, blocks: tuple[int, int]
) -> Line:
    """Tokens of layers in several groups: the requests that fit, times their length."""
    length = context.number("length")
    if not length:
        context.ask("the length of a request (max_seq_len)")
        return Line("tokens", printed, "", "asked", 0, 0, number.line)
    each = pages.blocks_of(length)
    least, most = (int(n / each * length) for n in blocks)
    text = f"{blocks[0]:,} to {blocks[1]:,} blocks / {each:,} a request × {length:,}"
    verdict = "exact" if least <= number.n_bytes <= most else "unexplained"
    return Line("tokens", printed, text, verdict, 0, 0, number.line)


def _cache_blocks(context: LogContext, number: Number, printed: str) -> Line:
    """Blocks of the cache: those that the bytes for it hold, where the log prints them."""
    pages, room = _pages(context), context.of("cache room")
    n_bytes = number.n_bytes * pages.block_bytes
    text = f"{gib(n_bytes)} in blocks of {gib(pages.block_bytes)}"
    if room is None:
        return Line("blocks", printed, text, "read", n_bytes, 0, number.line)
    over = room.n_bytes - n_bytes
    is_all = -room.rounding <= over < pages.block_bytes + room.rounding
    verdict = "exact" if is_all else "unexplained"
    unexplained = 0 if is_all else min(abs(over), n_bytes)
    return Line("blocks", printed, text, verdict, n_bytes, unexplained, number.line)


def _concurrency(context: LogContext, number: Number, printed: str) -> Line:
    tokens, length = context.of("cache tokens"), context.number("length")
    blocks = context.of("cache blocks")
    if blocks and not tokens:
        n = blocks.n_bytes * (context.chosen.get("cache_block") or 16)
    elif tokens:
        n = tokens.n_bytes
    else:
        context.ask("a line with the tokens of the cache (GPU KV cache size)")
        return Line("concurrency", printed, "", "asked", 0, 0, number.line)
    if not length:
        context.ask("the length of a request (max_seq_len)")
        return Line("concurrency", printed, "", "asked", 0, 0, number.line)
    digits = Decimal(1).scaleb(-len(number.text.partition(".")[2]))
    exact = abs(Decimal(n) / length - number.value) <= digits / 2 + digits / 50
    verdict = "exact" if exact else "unexplained"
    text = f"{n:,} tokens / {length:,}"
    return Line("concurrency", printed, text, verdict, 0, 0, number.line)


def _half(context: LogContext, number: Number, printed: str) -> Line:
    """Keys or values of SGLang: half of the cache of the tokens that it counts."""
    tokens = context.of("cache tokens")
    if tokens is None:
        return _read(context, number, printed)
    half = tokens.n_bytes * _token_bytes(context) // 2
    return judged(number.quantity, printed, number.n_bytes, number.rounding, number.line,
                  [(f"{tokens.n_bytes:,} tokens", half)])  # fmt: skip


def _table_cache(context: LogContext, number: Number, printed: str) -> Line:
    """Explain a column of a table of caches: thousands of tokens are 1,000 or 1,024 each."""
    thousands = int(number.name.removesuffix("k"))
    each = _token_bytes(context)
    lines = [
        judged(f"cache, {number.name} tokens", printed, number.n_bytes, number.rounding,
               number.line, [(f"of {thousands * thousand:,} tokens", thousands * thousand * each)])
        for thousand in (1000, 1024)
    ]  # fmt: skip
    return min(lines, key=lambda line: (line.verdict != "exact", " unexplained" in line.explained))


def _file(context: LogContext, number: Number, printed: str) -> Line:
    """Size of a file: parameters times bits of each, as llama.cpp prints both."""
    params, bits = context.of("parameters"), Decimal(context.log.settings.get("bits", 0))
    if params is None or not bits:
        return _read(context, number, printed)
    n_params = params.value * 10**9
    whole = int(n_params * bits / 8)
    digits = Decimal(1).scaleb(-len(params.text.partition(".")[2]))
    off = int(whole * (digits / params.value + Decimal("0.005") / bits)) + number.rounding
    text = f"{params.text} B × {bits} bits"
    exact = abs(whole - number.n_bytes) <= off
    unexplained = 0 if exact else abs(whole - number.n_bytes)
    return Line("tensors of the file", printed, text, "bounded" if exact else "unexplained",
                number.n_bytes, unexplained, number.line)  # fmt: skip


def _trained(context: LogContext, number: Number, printed: str) -> Line:
    assert context.model is not None
    if not {"adapter_rank", "adapter_targets"} <= context.chosen.keys():
        context.ask("--set adapter_rank=… and --set adapter_targets='query value': of the adapter")
        return Line("trained", printed, "", "asked", 0, 0, number.line)
    from modelbudget.api.explained_files import adapter_parameters

    n = adapter_parameters(context.model, context.chosen["adapter_rank"],
                           context.chosen["adapter_targets"].split())  # fmt: skip
    rank = context.chosen["adapter_rank"]
    verdict = "exact" if n == number.n_bytes else "unexplained"
    return Line("trained", printed, f"Σ {rank} (d_in + d_out) = {n:,}", verdict, 0,
                abs(n - number.n_bytes), number.line)  # fmt: skip


def _all_parameters(context: LogContext, number: Number, printed: str) -> Line:
    assert context.model is not None
    base, trained = context.model.parameters().total, context.of("trained")
    adapter = trained.n_bytes if trained else 0
    verdict = "exact" if base + adapter == number.n_bytes else "unexplained"
    return Line("all parameters", printed, f"{base:,} of the model + {adapter:,} trained", verdict,
                0, abs(base + adapter - number.n_bytes), number.line)  # fmt: skip


def _share(context: LogContext, number: Number, printed: str) -> Line:
    trained, whole = context.of("trained"), context.of("all parameters")
    if trained is None or whole is None or not whole.n_bytes:
        return _read(context, number, printed)
    digits = Decimal(1).scaleb(-len(number.text.partition(".")[2]))
    exact = abs(100 * trained.value / whole.value - number.value) <= digits / 2
    verdict = "exact" if exact else "unexplained"
    return Line("trained share", printed, f"{trained.text} / {whole.text}", verdict, 0, 0,
                number.line)  # fmt: skip


def _peak(context: LogContext, number: Number, printed: str) -> Line:
    """Peak of the allocator: of a training step, where the step's settings are given."""
    assert context.model is not None
    if not {"batch", "length"} <= context.chosen.keys():
        context.ask("--set batch=… and --set length=…: of the step whose peak it is")
        return Line("peak", printed, "", "asked", number.n_bytes, 0, number.line)
    fields = RunConfig.model_fields
    run = {name: value for name, value in context.chosen.items() if name in fields}
    predictions = context.model.predictions(["peak_training_bytes"], run)
    if predictions.missing:
        context.ask(f"a run with a formula: {predictions.missing['peak_training_bytes']}")
        return Line("peak", printed, "", "asked", number.n_bytes, 0, number.line)
    peak = predictions["peak_training_bytes"].total
    return judged("peak", printed, number.n_bytes, number.rounding, number.line,
                  [("of live tensors", peak)])  # fmt: skip


def _process(context: LogContext, number: Number, printed: str) -> Line:
    """Memory of a process: what torch has allocated and cached, and what is outside of it."""
    terms = [(name, part.n_bytes) for name, quantity in
             (("allocated", "allocated"), ("cached", "cached"))
             if (part := context.of(quantity))]  # fmt: skip
    if len(terms) < 2:
        return _read(context, number, printed)
    return judged("process", printed, number.n_bytes, number.rounding, number.line, terms)


def _in_use(context: LogContext, number: Number, printed: str) -> Line:
    """Compare a reading of the driver with weights and cache of the run that is given."""
    a, run = _pair(context)
    if "length" not in context.chosen:
        context.ask("--set length=…, --set batch=…: tokens and sequences of the cache")
        return Line("device in use", printed, "", "asked", number.n_bytes, 0, number.line)
    cache = run.batch * run.length * _token_bytes(context)
    terms = [("weights", weight_bytes(a, run)), ("cache", cache)]
    return judged("device in use", printed, number.n_bytes, number.rounding, number.line, terms)


def _optimizer(context: LogContext, number: Number, printed: str) -> Line:
    """Megatron's report: 18 bytes a parameter in bfloat16 with main parameters and moments."""
    assert context.model is not None
    n = context.model.parameters().total
    return judged("weights and optimizer", printed, number.n_bytes, number.rounding, number.line,
                  [(f"18 × {n:,}", 18 * n)])  # fmt: skip


_RULES = {
    "weights": _weights,
    "cache room": _cache_room,
    "cache tokens": _cache_tokens,
    "cache blocks": _cache_blocks,
    "concurrency": _concurrency,
    "keys": _half,
    "values": _half,
    "cache of a table": _table_cache,
    "llama cache": llama_cache,
    "llama states": llama_states,
    "file": _file,
    "trained": _trained,
    "all parameters": _all_parameters,
    "trained share": _share,
    "peak": _peak,
    "process": _process,
    "device in use": _in_use,
    "weights and optimizer": _optimizer,
}
"""Quantity of `configs/logs.yaml` → how it is explained."""
