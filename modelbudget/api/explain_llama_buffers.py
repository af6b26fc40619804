"""Tensors and buffers of llama.cpp, from the .gguf file that its log describes."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from modelbudget.api.explained import Line, gib
from modelbudget.api.gguf import GgufFile
from modelbudget.api.gguf_of_log import MOST_TABLES
from modelbudget.api.log_context import LogContext, Reading
from modelbudget.api.serving import is_on_host
from modelbudget.files.gguf_formats import FLOATS, OF_TOKENS, gguf_formats
from modelbudget.files.gguf_tensors import layer_of
from modelbudget.files.log_lines import Number
from modelbudget.huggingface.checkpoint_files import Tensor
from modelbudget.predict.compute_buffer import compute_buffer_bytes
from modelbudget.serving.cache_formats import FLOAT32

BUFFER = "buffer"
ON_HOST = re.compile("^CPU|_Host")
"""In the names of buffers in the host's memory."""
MAPPED = "_Mapped"
"""In the names of buffers that are the part of a file from their first tensor to their last."""
ROW, ALIGNMENT = 512, 128
"""Numbers to which CUDA fills up the last row of a quantised tensor, and bytes to which it does
tensors (MATRIX_ROW_PADDING and buffer_type_get_alignment in ggml-cuda.cu).
"""


def tensors_of_a_type(reading: Reading) -> Line:
    """Count the tensors of a type, but for tables of RoPE in F32, which hold no parameters."""
    type_name, file = reading.number.name.upper(), reading.context.recipe
    name = f"tensors in {type_name}"
    if file is None:
        return reading.of_itself(name, "of the tool itself", "read")
    n = Counter(tensor.dtype for tensor in file.tensors)[type_name]
    n_more = reading.number.n_bytes - n
    is_of_tables = type_name == "F32" and 0 < n_more <= MOST_TABLES
    text = f"{n} in {file.format}" + (f" + {n_more} of RoPE" if is_of_tables else "")
    return reading.compared(name, text, is_of_tables or not n_more)


def buffer(reading: Reading) -> Line:
    """Explain a buffer: of tensors, of logits, or of a pass, within its bounds."""
    context, file = reading.context, reading.context.file
    place, what, *_ = reading.number.name.split()
    if _is_of_several_loads(reading):
        return reading.read()
    if what == "output" and context.pair:
        return _of_logits(reading)
    if what == "compute" and not ON_HOST.search(place):
        return _of_pass(reading)
    if what in ("model", BUFFER) and file:
        return _of_tensors(reading, file)
    return reading.read()


def _of_logits(reading: Reading) -> Line:
    """Logits in float32 of one token of each sequence."""
    assert reading.context.pair is not None
    n = reading.context.number("sequences") or 1
    n_vocab = getattr(reading.context.pair[0], "n_vocab", 0)
    return reading.judged(reading.name, (f"{n} × {n_vocab:,} logits", FLOAT32 * n * n_vocab))


def _of_pass(reading: Reading) -> Line:
    """Bounds of the largest pass; versions of before June 2026 may need more."""
    context, kernel = reading.context, reading.context.log.settings.get("attention_kernel", "flash")
    n_tokens, length = context.number("batched_tokens"), context.number("length")
    if context.pair is None or not n_tokens or not length or len(_devices(context, "compute")) > 1:
        return reading.read()
    a, run = context.pair
    n = context.number("sequences") or 1
    settings = {"batched_tokens": n_tokens, "length": length // n, "batch": n}
    try:
        run = run.model_copy(update={**settings, "attention_kernel": kernel})
        least, most = compute_buffer_bytes(a, run)
    except ValueError:
        return reading.read()
    if not least <= reading.number.n_bytes <= most:
        return reading.read()
    text = f"a pass of {n_tokens:,} tokens: {gib(least)} to {gib(most)}"
    return reading.of_itself(reading.name, text, "bounded")


def _of_tensors(reading: Reading, file: GgufFile) -> Line:
    """Tensors of a device, of several together, or of the host."""
    context, name = reading.context, reading.name
    of_device, of_host = _divided(context, file)
    whole = sum(tensor.n_bytes for tensor in file.tensors)
    if ON_HOST.search(name):
        n_bytes = sum(tensor.n_bytes for tensor in of_host)
        is_part = MAPPED in name and len(of_host) > 1 and of_device
        parts = [("tensors between them", whole - n_bytes)] if is_part else []
        return reading.judged_within(name, [(_number(of_host), n_bytes)], parts)
    devices = _devices(context, "model") + _devices(context, BUFFER)
    n_bytes = sum(tensor.n_bytes for tensor in of_device)
    parts = [("padding of rows", _on_cuda(of_device) - n_bytes)]
    if MAPPED in name:
        parts.append(("tokens", whole - n_bytes))
    term = _number(of_device), n_bytes
    if len(devices) > 1:  # the log does not say which layers each has
        text = str(sum(number.value for number in devices))
        reading = Reading(context, devices[0]._replace(text=text))
        name = f"model buffers of {len(devices)} devices"
    line = reading.judged_within(name, [term], parts)
    if line.verdict == "unexplained":
        context.ask("`host_tensors=…`: of -ot, if it keeps tensors on the host")
    return line


def _divided(context: LogContext, file: GgufFile) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors of devices, and those of the host.

    The last layers are offloaded, and the head with the norm before it; but what the log says, or
    `host_tensors`, to be kept. Tokens are looked up on the host; where the head is that table, the
    device has it too.
    """
    assert context.pair is not None
    a: Any = context.pair[0]
    first = a.n_layer - (context.number("device_layers") or 0)
    has_head = "device_head" in context.log.settings
    has_own = any(tensor.name == "output.weight" for tensor in file.tensors)
    head = None if has_own else OF_TOKENS[0]
    of_device, of_host = [], []
    for tensor in file.tensors:
        i = layer_of(tensor.name)
        is_offloaded = has_head if i is None else i >= first
        overridden = str(context.log.metadata.get(tensor.name, ""))
        is_kept = is_on_host(tensor.name, context.pair[1]) or bool(ON_HOST.search(overridden))
        is_table = tensor.name in OF_TOKENS
        if is_offloaded and not is_kept and (not is_table or tensor.name == head):
            of_device.append(tensor)
        if not is_offloaded or is_kept or is_table:
            of_host.append(tensor)
    return of_device, of_host


def _number(tensors: list[Tensor]) -> str:
    return f"{len(tensors)} tensor{'s' if len(tensors) > 1 else ''}"


def _on_cuda(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors with what CUDA's buffers fill up."""
    n_bytes = 0
    for tensor in tensors:
        more = -tensor.shape[-1] % ROW if tensor.dtype not in FLOATS else 0
        filled = tensor.n_bytes + gguf_formats().types[tensor.dtype].n_bytes((more,))
        n_bytes += -(-filled // ALIGNMENT) * ALIGNMENT
    return n_bytes


def _devices(context: LogContext, what: str) -> list[Number]:
    """Return the numbers of a log about buffers of one sort, of each device the first."""
    of_places: dict[str, Number] = {}
    for number in _buffers(context):
        place, of_number, *_ = number.name.split()
        if of_number == what and not ON_HOST.search(place):
            of_places.setdefault(place, number)
    return [*of_places.values()]


def _buffers(context: LogContext) -> list[Number]:
    """Return the sizes of buffers, without those of a trial, which allocates nothing."""
    numbers = (number for number in context.log.numbers if number.quantity == BUFFER)
    return [number for number in numbers if number.value]


def _is_of_several_loads(reading: Reading) -> bool:
    """Return whether a log has another size of a buffer, too, or this is of a trial."""
    name = reading.name
    same = (of for of in _buffers(reading.context) if " ".join(of.name.split()) == name)
    return {of.text for of in same} != {reading.number.text}
