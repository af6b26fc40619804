"""Explains logs of engines and trainers, number by number."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from modelbudget.api.adapted_layers import adapted
from modelbudget.api.explain_llama_buffers import BUFFER, buffer, tensors_of_a_type
from modelbudget.api.explain_llama_cpp import llama_cache, llama_states
from modelbudget.api.explain_out_of_memory import ALLOCATED, TRIED, allocated, tried
from modelbudget.api.explained import Explained, Line, gib
from modelbudget.api.gguf_of_log import OF_A_TYPE
from modelbudget.api.log_context import LogContext, Reading
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import bytes_of
from modelbudget.files.log_lines import Number, read_log
from modelbudget.predict.engine_weights import (
    allocator_bytes,
    bytes_besides,
    draft_head_bytes,
    kernel_padding_bytes,
    rotary_bytes,
    scalar_bytes,
    weight_bytes,
    whole_norm_bytes,
)
from modelbudget.predict.serve import caches_on_device, without_mtp
from modelbudget.serving.cache_layouts import Pages, pages_of

OF_MODEL = {"weights", "cache room", "cache tokens", "cache blocks", "keys", "values", "latents",
            "request", "largest length", "trained", "cache of tokens", "cache of a table",
            "all parameters", "peak", "device in use", "weights and optimizer"}  # fmt: skip
"""Quantities whose formula needs the model."""
SGLANG_PAGE = 256
"""Most tokens that SGLang's cache has besides those that it counts (`size + page_size` rows in
mem_cache/memory_pool.py).
"""
LENGTH = "the length of a request (max_seq_len)"
"""What no line of some logs says."""


def of_log(path: Path, model: str | None, chosen: dict[str, Any]) -> Explained:
    """Explain the numbers of a log. Raises InputError."""
    log = read_log(path)
    context = LogContext(log, model, chosen)
    if context.model is None and any(number.quantity in OF_MODEL for number in log.numbers):
        printed = log.settings.get("model")
        named = f", {printed} is not in `modelbudget models`" if printed else ""
        context.ask(f"`model=NAME`: a published model or a config.json{named}")
    lines: dict[Line, Line] = {}
    for line in _lines(context):  # tools print some twice, in several processes too
        lines.setdefault(line._replace(place=0), line)
    about = context.model.label if context.model else "no model"
    title = f"{', '.join(log.tools)}; {about}"
    if context.pair and (n := context.pair[1].tensor_parallel * context.pair[1].data_parallel) > 1:
        title += f", one of {n} devices"
    capacity = next((of.text for of in log.numbers if of.quantity == "capacity"), None)
    name = context.model.name if context.model else "MODEL"
    fits = f"what fits: modelbudget {name} --fit {capacity}GiB --batch N --length N"
    return Explained(
        path, title, tuple(lines.values()), tuple(context.asked), fits if capacity else ""
    )


def _lines(context: LogContext) -> Iterator[Line]:
    for number in context.log.numbers:
        reading = Reading(context, number)
        if number.quantity in OF_MODEL and context.pair is None:
            yield reading.of_itself(number.quantity, "", "asked")
        else:
            try:
                yield _RULES.get(number.quantity, Reading.read)(reading)
            except ValueError as error:  # no formula covers it
                yield reading.asked(number.quantity, str(error))


def _pair(context: LogContext) -> tuple[Architecture, RunConfig]:
    assert context.pair is not None
    if context.asks_dtype:
        context.ask("`dtype=…`: bfloat16 is taken")
    a, run = context.pair
    return (a if "n_mtp_layer" in context.chosen else without_mtp(a)), run


def _weights(reading: Reading) -> Line:
    """Weights of one device; vLLM's with its RoPE table, scales and copies of matrices."""
    context = reading.context
    a, run = _pair(context)
    if run.weights == "unknown":
        return reading.asked("weights", "`weights=…`: a known format")
    terms = [(run.weights if run.weights != "dtype" else run.dtype, weight_bytes(a, run))]
    parts: list[tuple[str, int]] = []
    is_vllm = reading.number.tool == "vLLM"
    terms.extend(bytes_besides(a, run, reading.number.tool).items())
    if of_head := draft_head_bytes(a, run):
        terms.append(("head of EAGLE 3", of_head))
        parts.append(("RoPE table of the head", rotary_bytes(a, run)))
    if left_out := context.model and context.model.base.left_out:
        is_whole = run.tensor_parallel == 1 and run.weights == "dtype"
        of_images = "what reads images", left_out * bytes_of(run.dtype)
        (terms if is_whole else parts).append(of_images)
    if is_vllm and (table := rotary_bytes(a, run)):
        terms.append(("RoPE table", table))
        parts.append(("further rows of it", (run.rope_rows - 1) * table))
        parts.append(("blocks of scalars", scalar_bytes(a, run)))
        if "n_ctx" not in context.chosen and context.model and not context.model.base.config:
            context.ask("`n_ctx=…`: positions of the RoPE table (max_position_embeddings)")
    parts.append(("padding of experts for kernels", kernel_padding_bytes(a, run)))
    parts.append(("if norms of all heads are whole", whole_norm_bytes(a, run)))
    rounding = "rounding of torch's allocator", allocator_bytes(a, run)
    return reading.judged_within("weights", terms, parts, rounding)


def _plans(context: LogContext) -> list[Pages]:
    """Return the pages, of recurrences with a state for prefix caching and without, if not set."""
    a, run = _pair(context)
    caches = caches_on_device(a, run)
    counts = [run.cached_states] if "cached_states" in context.chosen else [2, 1]
    return [pages_of(caches, run.model_copy(update={"cached_states": n})) for n in counts]


def _token_bytes(context: LogContext) -> int:
    a, run = _pair(context)
    return sum(cache.n_layer * cache.token_bytes(run) for cache in caches_on_device(a, run))


def _cache_room(reading: Reading) -> Line:
    """Bytes for the cache: the blocks that the log counts, and less than one block more."""
    context, number = reading
    pages = _plans(context)[0]
    blocks, tokens = context.of("cache blocks"), context.of("cache tokens")
    n = blocks.n_bytes if blocks else None
    if n is None and tokens and len(pages.groups) == 1:
        n = tokens.n_bytes // (pages.block_tokens or 1)
    if n is None:
        text = f"room for {number.n_bytes // pages.block_bytes:,} × {gib(pages.block_bytes)}"
        return reading.of_itself("cache", text, "read")
    name, whole = f"cache, {n:,} blocks", n * pages.block_bytes
    if n in _blocks_in(number, pages):
        return reading.of_itself(name, f"{n:,} × {gib(pages.block_bytes)}", "exact")
    return reading.judged(name, (f"{n:,} blocks", whole))


def _cache_tokens(reading: Reading) -> Line:
    """Tokens that the cache holds: whole blocks of the bytes that the log prints."""
    context, number = reading
    if number.tool == "SGLang":
        each, keys = _token_bytes(context), context.of("keys")
        of_keys = _of_tokens(Reading(context, keys)) if keys else reading.read()
        n_bytes, unexplained = number.n_bytes * each, of_keys.unexplained
        text = f"{gib(n_bytes)} of {gib(each)} each"
        return reading.line("tokens of the cache", text, of_keys.verdict, n_bytes, unexplained)
    pages, room = _plans(context)[0], context.of("cache room")
    if room is None:
        what = "a line with the bytes for the cache (Available KV cache memory)"
        return reading.asked("tokens", what)
    blocks = _blocks_in(room, pages)
    if len(pages.groups) > 1:
        return _tokens_of_groups(reading, blocks)
    n, more = divmod(number.n_bytes, pages.block_tokens or 1)
    is_exact = n in blocks and not more
    text = f"{n:,} × {pages.block_tokens}" + (f" and {more} more" if more else "")
    of_blocks, of_room = f"{blocks[0]:,} to {blocks[-1]:,} blocks", f"{room.text} {room.unit}"
    text += f" of {of_blocks} in {of_room}" if is_exact else f", where {of_room} hold {of_blocks}"
    off = 0 if is_exact else abs(n - (blocks[0] + blocks[-1]) // 2) * pages.block_bytes
    return reading.compared("tokens", text, is_exact, off, off)


def _blocks_in(room: Number, pages: Pages) -> range:
    """Return the numbers of blocks that bytes which are printed rounded may hold."""
    least, most = room.n_bytes - room.rounding, room.n_bytes + room.rounding
    return range(least // pages.block_bytes, most // pages.block_bytes + 1)


def _tokens_of_groups(reading: Reading, blocks: range) -> Line:
    """Tokens of layers in several groups: what versions of vLLM print differs.

    0.18 prints those of each group, 0.32 the requests that fit times their length.
    """
    pages = _plans(reading.context)[0]
    of_group = {n // len(pages.groups) * (pages.block_tokens or 1) for n in blocks}
    if reading.number.n_bytes in of_group:
        of_blocks = f"{blocks[0]:,} to {blocks[-1]:,} blocks / {len(pages.groups)} groups"
        return reading.compared("tokens", f"{of_blocks} × {pages.block_tokens:,}", True)
    length = reading.context.number("length")
    if not length:
        return reading.asked("tokens", LENGTH)
    each, least, most = _requests(reading, blocks, length, reading.number.value / length)
    text = f"{blocks[0]:,} to {blocks[-1]:,} blocks / {each:,} a request × {length:,}"
    n_tokens = reading.number.n_bytes
    return reading.compared("tokens", text, int(least * length) <= n_tokens <= int(most * length))


def _requests(
    reading: Reading, blocks: range, length: int, printed: Decimal
) -> tuple[int, Decimal, Decimal]:
    """Return the blocks of a request, and the least and the most requests that fit.

    Of a recurrence with a state for prefix caching or without, whichever is as printed.
    """
    numbers = [pages.blocks_of(length) for pages in _plans(reading.context)]
    answers = [(n, Decimal(blocks[0]) / n, Decimal(blocks[-1]) / n) for n in numbers]
    return min(answers, key=lambda answer: abs(answer[1] + answer[2] - 2 * printed))


def _cache_blocks(reading: Reading) -> Line:
    """Blocks of the cache: those that the bytes for it hold, where the log prints them."""
    pages, room = _plans(reading.context)[0], reading.context.of("cache room")
    n_bytes = reading.number.n_bytes * pages.block_bytes
    text = f"{gib(n_bytes)} in blocks of {gib(pages.block_bytes)}"
    if room is None:
        return reading.line("blocks", text, "read", n_bytes)
    is_all = reading.number.n_bytes in _blocks_in(room, pages)
    unexplained = min(abs(room.n_bytes - n_bytes), n_bytes)
    return reading.compared("blocks", text, is_all, n_bytes, unexplained)


def _request(reading: Reading) -> Line:
    """Bytes for one request of a length, without which vLLM does not start."""
    length, plans = reading.count("length") or 0, _plans(reading.context)
    of_plans = [(pages.blocks_of(length), pages.block_bytes) for pages in plans]
    terms = [(f"{n:,} blocks of {length:,} tokens", n * each) for n, each in of_plans]
    lines = [reading.judged("a request", term) for term in terms]
    return min(lines, key=lambda line: line.unexplained)


def _largest_length(reading: Reading) -> Line:
    """Length of one request for which the blocks are enough, as vLLM estimates it."""
    room, length = reading.context.of("cache room"), reading.number.n_bytes
    if room is None:
        return reading.read()
    text, is_largest = f"what {room.text} {room.unit} hold", False
    for pages in _plans(reading.context):
        blocks, n = _blocks_in(room, pages), pages.blocks_of(length)
        if n <= blocks[-1] and pages.blocks_of(length + 1) > blocks[0]:
            text, is_largest = f"{n:,} of {blocks[0]:,} to {blocks[-1]:,} blocks", True
    return reading.compared("largest length", text, is_largest)


def _concurrency(reading: Reading) -> Line:
    """Explain requests of a length at once: tokens by length, or blocks of several groups."""
    context = reading.context
    tokens, blocks = context.of("cache tokens"), context.of("cache blocks")
    if tokens:
        n = tokens.n_bytes
    elif blocks:
        n = blocks.n_bytes * (context.chosen.get("cache_block") or 16)
    else:
        what = "a line with the tokens of the cache (GPU KV cache size)"
        return reading.asked("concurrency", what)
    length = reading.count("length")
    if not length:
        return reading.asked("concurrency", LENGTH)
    off = _last_digit(reading.number) * Decimal("0.52")
    room = context.of("cache room")
    if context.pair and room and len((pages := _plans(context)[0]).groups) > 1:
        blocks, value = _blocks_in(room, pages), reading.number.value
        each, least, most = _requests(reading, blocks, length, value)
        text = f"{blocks[0]:,} to {blocks[-1]:,} blocks / {each:,}"
        return reading.compared("concurrency", text, least - off <= value <= most + off)
    is_exact = abs(Decimal(n) / length - reading.number.value) <= off
    return reading.compared("concurrency", f"{n:,} tokens / {length:,}", is_exact)


def _last_digit(number: Number) -> Decimal:
    """Return what the last digit of a number counts: 0.01 of 1.25."""
    return Decimal(1).scaleb(-len(number.text.partition(".")[2]))


def _of_tokens(reading: Reading) -> Line:
    """Explain the cache of the tokens that SGLang counts: keys, as many values, or latents."""
    tokens, quantity = reading.context.of("cache tokens"), reading.number.quantity
    if tokens is None:
        return reading.read()
    n_bytes = tokens.n_bytes * _token_bytes(reading.context)
    part = n_bytes if quantity == "latents" else n_bytes // 2
    page = SGLANG_PAGE * part // (tokens.n_bytes or 1)
    return reading.judged_within(
        quantity, [(f"{tokens.n_bytes:,} tokens", part)], [("up to a page", page)])  # fmt: skip


def _cache_of_tokens(reading: Reading) -> Line:
    """Bytes of the tokens that TensorRT-LLM counts."""
    n = reading.count("cached_tokens")
    if not n:
        return reading.asked("cache", "a line with the tokens in the paged KV cache")
    each = _token_bytes(reading.context)
    return reading.judged(f"cache, {n:,} tokens", (f"{n:,} × {gib(each)}", n * each))


def _table_cache(reading: Reading) -> Line:
    """Explain a column of a table of caches: thousands of tokens are 1,000 or 1,024 each."""
    name = reading.number.name
    each = _token_bytes(reading.context)
    numbers = [int(name.removesuffix("k")) * thousand for thousand in (1000, 1024)]
    lines = [
        reading.judged(f"cache, {name} tokens", (f"of {n:,} tokens", n * each)) for n in numbers
    ]
    return min(lines, key=lambda line: (line.verdict != "exact", " unexplained" in line.explained))


def _file(reading: Reading) -> Line:
    """Size of a file: its tensors, or parameters times bits of each, as llama.cpp prints both."""
    context, number = reading
    if file := context.file:
        n_bytes = sum(tensor.n_bytes for tensor in file.tensors)
        return reading.judged("tensors of the file", (file.format, n_bytes))
    params, bits = context.of("parameters"), Decimal(context.log.settings.get("bits", 0))
    if params is None or not params.value or not bits:
        return reading.read()
    whole = int(params.value * 10**9 * bits / 8)
    off = int(whole * (_last_digit(params) / params.value + Decimal("0.005") / bits))
    difference = abs(whole - number.n_bytes)
    name, text = "tensors of the file", f"{params.text} B × {bits} bits"
    if difference <= off + number.rounding:
        return reading.of_itself(name, text, "bounded")
    return reading.line(name, text, "unexplained", number.n_bytes, difference)


def _billions(reading: Reading) -> Line:
    """Count the parameters of a file, as llama.cpp prints them."""
    context, number = reading
    if context.model is None:
        return reading.read()
    n = context.model.parameters().total
    difference = round(number.value * 10**9) - n
    is_exact = abs(difference) <= _last_digit(number) * 10**9 / 2
    return reading.compared("parameters", f"{n:,}", is_exact, 0, abs(difference))


def _trained(reading: Reading) -> Line:
    context = reading.context
    if not {"adapter_rank", "adapter_targets"} <= context.chosen.keys():
        what = "`adapter_rank=…` and `adapter_targets=query value`: of the adapter"
        return reading.asked("trained", what)
    rank, targets = context.chosen["adapter_rank"], context.chosen["adapter_targets"]
    n = adapted(reading.model, targets.replace(",", " ").split(), {"r": rank}).parameters
    difference = abs(n - reading.number.n_bytes)
    text = f"Σ {rank} (d_in + d_out) = {n:,}"
    return reading.compared("trained", text, not difference, 0, difference)


def _all_parameters(reading: Reading) -> Line:
    base, trained = reading.model.parameters().total, reading.context.of("trained")
    adapter = trained.n_bytes if trained else 0
    difference = abs(base + adapter - reading.number.n_bytes)
    text = f"{base:,} of the model + {adapter:,} trained"
    return reading.compared("all parameters", text, not difference, 0, difference)


def _share(reading: Reading) -> Line:
    trained, whole = reading.context.of("trained"), reading.context.of("all parameters")
    if trained is None or whole is None or not whole.n_bytes:
        return reading.read()
    difference = abs(100 * trained.value / whole.value - reading.number.value)
    is_exact = difference <= _last_digit(reading.number) / 2
    return reading.compared("trained share", f"{trained.text} / {whole.text}", is_exact)


def _peak(reading: Reading) -> Line:
    """Peak of the allocator: of a training step, where the step's settings are given."""
    context = reading.context
    if not {"batch", "length"} <= context.chosen.keys():
        return reading.asked("peak", "`batch=…` and `length=…`: of the step whose peak it is")
    run = {k: value for k, value in context.chosen.items() if k in RunConfig.model_fields}
    predictions = reading.model.predictions(["peak_training_bytes"], run)
    if why := predictions.missing.get("peak_training_bytes"):
        return reading.asked("peak", f"a run with a formula: {why}")
    return reading.judged("peak", ("of live tensors", predictions["peak_training_bytes"].total))


def _process(reading: Reading) -> Line:
    """Memory of a process: what torch has allocated and cached, and what is outside of it."""
    terms = [(name, part.n_bytes) for name in ("allocated", "cached")
             if (part := reading.context.of(name))]  # fmt: skip
    return reading.judged("process", *terms) if len(terms) == 2 else reading.read()


def _in_use(reading: Reading) -> Line:
    """Compare a reading of the driver with weights and cache of the run that is given."""
    a, run = _pair(reading.context)
    if "length" not in reading.context.chosen:
        what = "`length=…` and `batch=…`: tokens and sequences of the cache"
        return reading.asked("device in use", what)
    cache = run.batch * run.length * _token_bytes(reading.context)
    return reading.judged("device in use", ("weights", weight_bytes(a, run)), ("cache", cache))


def _optimizer(reading: Reading) -> Line:
    """Megatron's report: 18 bytes a parameter in bfloat16 with main parameters and moments."""
    n = reading.model.parameters().total
    return reading.judged("weights and optimizer", (f"18 × {n:,}", 18 * n))


_RULES = {
    "weights": _weights,
    "cache room": _cache_room,
    "cache tokens": _cache_tokens,
    "cache blocks": _cache_blocks,
    "concurrency": _concurrency,
    "request": _request,
    "largest length": _largest_length,
    "keys": _of_tokens,
    "values": _of_tokens,
    "latents": _of_tokens,
    "cache of tokens": _cache_of_tokens,
    "cache of a table": _table_cache,
    "llama cache": llama_cache,
    "llama states": llama_states,
    "file": _file,
    "parameters": _billions,
    OF_A_TYPE: tensors_of_a_type,
    BUFFER: buffer,
    "trained": _trained,
    "all parameters": _all_parameters,
    "trained share": _share,
    "peak": _peak,
    "process": _process,
    TRIED: tried,
    ALLOCATED: allocated,
    "device in use": _in_use,
    "weights and optimizer": _optimizer,
}
"""Quantity of `configs/logs.yaml` → how it is explained."""
