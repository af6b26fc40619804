"""The table of `modelbudget MODEL --serve ACCELERATOR`."""

from collections.abc import Iterator

from modelbudget.api.command.options import Output
from modelbudget.api.command.serve_changes import Serve, ServingChange, what_helps
from modelbudget.api.command.text_table import Table
from modelbudget.api.serving import Serving
from modelbudget.catalogue.memory_margins import memory_margins
from modelbudget.catalogue.quantised_copies import FILE_FORMAT
from modelbudget.common.number_format import count, si_bytes
from modelbudget.predict.engine_weights import SHARES
from modelbudget.predict.serve import ENDLESS, NOT_KNOWN, Term

OF_LLAMA_CPP = ServingChange(gguf=FILE_FORMAT).words


def show(serving: Serving, printed: Output, serve: Serve) -> None:
    """Print what is served, as a table or as data, and what helps if that is nothing."""
    helps = [] if serving.requests else what_helps(serving, serve)
    notes = [*_notes(serving)] + ([] if serving.requests else [too_small(serving, helps)])
    content = serving.as_dict() | {"what_helps": helps}
    printed.show(content, serving.rows(), [of_serving(serving)], notes)


def _notes(serving: Serving) -> Iterator[str]:
    for term in serving.of_device.terms:
        if (term.how == "read" and term.n_bytes) or term.note.startswith(NOT_KNOWN):
            yield f"{term.name}: {term.note}"
    yield from serving.notes
    if serving.accelerator.platform == "mps" and not serving.file:
        yield f"blocks as vLLM has them; llama.cpp on a Mac: {OF_LLAMA_CPP}"


def too_small(serving: Serving, helps: list[str]) -> str:
    """Return why no request is served, and the options with each of which one is."""
    of_device, length = serving.of_device, count(serving.run.length)
    needed = sum(term.n_bytes for term in of_device.terms)
    if needed >= of_device.usable:
        why = f"weights and the rest need {si_bytes(needed)} of {si_bytes(of_device.usable)}"
    else:
        left, request = si_bytes(of_device.cache_bytes), si_bytes(of_device.request_bytes)
        why = f"the cache of one of {length} tokens needs {request}, and {left} are left"
    at_least = ""
    if serving.most_requests:
        at_least = f", with bounded terms at their least {count(serving.most_requests)}"
    options = f"what helps: {', or '.join(helps)}" if helps else "no single option helps"
    return f"no request fits{at_least}: {why}; {options}"


def of_serving(serving: Serving) -> Table:
    """Return the terms of a device's memory and the requests, in 80 columns."""
    of_device, run, accelerator = serving.of_device, serving.run, serving.accelerator
    rows = [
        ("memory of a device", si_bytes(of_device.memory), "read", accelerator.short_source),
        (f"of it, utilisation {run.utilisation} %", si_bytes(of_device.usable), "exact", ""),
        *((f"− {of.name}", si_bytes(of.n_bytes), of.how, _note(of)) for of in of_device.terms),
        ("= cache", si_bytes(of_device.cache_bytes), "", ""),
        *_requests(serving),
    ]
    if serving.file:
        rows.insert(0, (f"one request of {count(run.length)} tokens", serving.grade, "", ""))
    others = (f", {name} {n}" for name in SHARES[1:] if (n := getattr(run, name)) > 1)
    shared = f"tensor_parallel {run.tensor_parallel}{''.join(others)}"
    if serving.file and serving.devices > serving.replicas:
        shared = "layers divided"
    weights, cache = (run.dtype if f == "dtype" else f for f in (run.weights, run.cache_dtype))
    formats = f"weights {serving.file or weights}, cache {cache}"
    several = f"{count(serving.devices)} × " if serving.devices > 1 else ""
    title = f"{serving.model} on {several}{accelerator.name}, {shared}; {formats}"
    return Table(title, ("a device", "value", "how", "note"), rows, texts=("how", "note"))


def _note(term: Term) -> str:
    """Return the note on a term in a table's width."""
    if term.name == "reserve" and term.note == memory_margins().reserve.source:
        return "a process's context"
    if term.note.startswith(NOT_KNOWN):
        return NOT_KNOWN
    if term.least is None or term.least == term.n_bytes:
        return term.note
    return f"from {si_bytes(term.least)} on, {term.note}"


def _requests(serving: Serving) -> Iterator[tuple[str, str, str, str]]:
    """Yield what a request takes of the cache, how many there are at once, and their length."""
    of_device, run = serving.of_device, serving.run
    target = f" + {count(run.target_length)}" if run.target_length else ""
    tokens = f"{count(run.length)}{target} tokens"
    blocks, n_bytes, of_request = of_device.blocks, of_device.block_bytes, of_device.request_blocks
    if blocks is not None and n_bytes and of_request is not None:
        of_tokens = f"of {count(of_device.block_tokens)} tokens, " if of_device.block_tokens else ""
        yield "blocks for requests", count(blocks), "exact", f"{of_tokens}{count(n_bytes)} bytes"
        yield "blocks of a request", count(of_request), "exact", tokens
    else:
        yield "cache of a request", si_bytes(of_device.request_bytes), "exact", tokens
    if of_device.shared_bytes:
        prefix = f"{count(min(run.shared_prefix, run.length - 1))} tokens"
        yield "shared prefix", si_bytes(of_device.shared_bytes), "exact", prefix
    up_to = f"to {count(serving.most_requests)}" if serving.most_requests > serving.requests else ""
    of_all = f"of {serving.replicas} replicas" if serving.replicas > 1 else ""
    yield "requests at once", count(serving.requests), "", f"{up_to} {of_all}".strip()
    longest = of_device.largest_length
    n_ctx = f"; n_ctx {count(serving.n_ctx)}" if serving.n_ctx and longest > serving.n_ctx else ""
    length = "any" if longest == ENDLESS else count(longest)
    yield f"largest length of {count(run.batch)} at once", length, "", f"tokens{n_ctx}"
