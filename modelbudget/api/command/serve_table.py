"""The table of `modelbudget MODEL --serve ACCELERATOR`."""

from collections.abc import Iterator

from modelbudget.api.command.options import Output
from modelbudget.api.command.serve_changes import ON_A_MAC, Change, Serve, what_helps
from modelbudget.api.command.text_table import Table
from modelbudget.api.serving import Serving
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.memory_margins import memory_margins
from modelbudget.common.number_format import count, si_bytes
from modelbudget.predict.engine_weights import SHARES
from modelbudget.predict.serve import ENDLESS, NOT_KNOWN

OF_LLAMA_CPP = Change(gguf=ON_A_MAC).words


def show(serving: Serving, printed: Output, serve: Serve) -> None:
    """Print what is served, as a table or as data, and what helps if that is nothing."""
    notes = [*_notes(serving)]
    if not serving.requests:
        notes.append(too_small(serving, what_helps(serving, serve)))
    printed.show(serving.as_dict(), serving.rows(), [of_serving(serving)], notes)


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
    of_device, run = serving.of_device, serving.run
    of = serving.accelerator
    rows = (
        [(f"one request of {count(run.length)} tokens", serving.grade, "", "")]
        if serving.file
        else []
    )
    rows += [
        ("memory of a device", si_bytes(of_device.memory), "read", of.short_source),
        (f"of it, utilisation {run.utilisation} %", si_bytes(of_device.usable), "exact", ""),
    ]
    for term in of_device.terms:
        note = term.note
        if term.least is not None and term.least != term.n_bytes:
            note = f"from {si_bytes(term.least)} on, {note}"
        if term.note.startswith(NOT_KNOWN):
            note = NOT_KNOWN
        if term.name == "reserve":
            is_of_process = term.note == memory_margins().reserve.source
            note = "a process's context" if is_of_process else term.note
        rows.append((f"− {term.name}", si_bytes(term.n_bytes), term.how, note))
    rows.append(("= cache", si_bytes(of_device.cache_bytes), "", ""))
    if (
        of_device.blocks is not None
        and of_device.block_bytes
        and of_device.request_blocks is not None
    ):
        of_tokens = f"of {count(of_device.block_tokens)} tokens, " if of_device.block_tokens else ""
        size = f"{of_tokens}{count(of_device.block_bytes)} bytes"
        rows.append(("blocks for requests", count(of_device.blocks), "exact", size))
        rows.append(("blocks of a request", count(of_device.request_blocks), "exact",
                     _tokens(run)))  # fmt: skip
    else:
        rows.append(("cache of a request", si_bytes(of_device.request_bytes), "exact",
                     _tokens(run)))  # fmt: skip
    if of_device.shared_bytes:
        rows.append(("shared prefix", si_bytes(of_device.shared_bytes), "exact",
                     f"{count(run.shared_prefix)} tokens"))  # fmt: skip
    up_to = f"to {count(serving.most_requests)}" if serving.most_requests > serving.requests else ""
    of_all = f"of {serving.replicas} replicas" if serving.replicas > 1 else ""
    rows.append(("requests at once", count(serving.requests), "", f"{up_to} {of_all}".strip()))
    longest = "any" if of_device.largest_length == ENDLESS else count(of_device.largest_length)
    is_longer = serving.n_ctx is not None and of_device.largest_length > serving.n_ctx
    note = f"tokens; n_ctx {count(serving.n_ctx)}" if is_longer and serving.n_ctx else "tokens"
    rows.append((f"largest length of {count(run.batch)} at once", longest, "", note))
    others = (f", {name} {n}" for name in SHARES[1:] if (n := getattr(run, name)) > 1)
    shared = f"tensor_parallel {run.tensor_parallel}{''.join(others)}"
    weights, cache = (run.dtype if f == "dtype" else f for f in (run.weights, run.cache_dtype))
    weights = serving.file or weights
    formats = f"weights {weights}, cache {cache}"
    several = f"{count(serving.devices)} × " if serving.devices > 1 else ""
    title = f"{serving.model} on {several}{serving.accelerator.name}, {shared}; {formats}"
    return Table(title, ("a device", "value", "how", "note"), rows, texts=("how", "note"))


def _tokens(run: RunConfig) -> str:
    """Return the tokens of a request: of its text, or of its source and its target."""
    target = f" + {count(run.target_length)}" if run.target_length else ""
    return f"{count(run.length)}{target} tokens"
