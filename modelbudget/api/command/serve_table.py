"""The table of `modelbudget MODEL --serve ACCELERATOR`."""

from modelbudget.api.command import output
from modelbudget.api.command.text_table import Table
from modelbudget.api.serving import Serving
from modelbudget.common.byte_sizes import GIVEN
from modelbudget.predict.serve import ENDLESS, NOT_KNOWN
from modelbudget.report.charts.format import count, si_bytes


def show(found: Serving, as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    """Print what is served, as a table or as data."""
    if as_json:
        output.print_json(found.as_dict())
    elif as_csv:
        output.print_csv(found.rows())
    else:
        output.print_tables([of_serving(found)], as_markdown)
        for term in found.of_device.terms:
            if term.how == "read" or term.note.startswith(NOT_KNOWN):
                output.print_note(f"{term.name}: {term.note}")


def of_serving(found: Serving) -> Table:
    """Return the terms of a device's memory and the requests, in 80 columns."""
    one, run = found.of_device, found.run
    driver = "driver" if found.accelerator.driver_gib else "given"
    rows = [
        ("memory of a device", si_bytes(one.memory), "read", driver),
        (f"of it, utilisation {run.utilisation} %", si_bytes(one.usable), "exact", ""),
    ]
    for term in one.terms:
        note = term.note
        if term.least is not None and term.least != term.n_bytes:
            note = f"from {si_bytes(term.least)} on, {note}"
        if term.note.startswith(NOT_KNOWN):
            note = NOT_KNOWN
        if term.name == "reserve":
            note = GIVEN if term.note == GIVEN else "a process's context"
        rows.append((f"− {term.name}", si_bytes(term.n_bytes), term.how, note))
    rows.append(("= cache", si_bytes(one.cache_bytes), "", ""))
    if one.blocks is not None and one.block_bytes and one.request_blocks is not None:
        of_tokens = f"of {count(one.block_tokens)} tokens, " if one.block_tokens else ""
        size = f"{of_tokens}{count(one.block_bytes)} bytes"
        rows.append(("blocks, one apart", count(one.blocks), "exact", size))
        rows.append(("blocks of a request", count(one.request_blocks), "exact",
                     f"{count(run.length)} tokens"))  # fmt: skip
    else:
        rows.append(("cache of a request", si_bytes(one.request_bytes), "exact",
                     f"{count(run.length)} tokens"))  # fmt: skip
    if one.shared_bytes:
        rows.append(("shared prefix", si_bytes(one.shared_bytes), "exact",
                     f"{count(run.shared_prefix)} tokens"))  # fmt: skip
    up_to = f"to {count(found.most_requests)}" if found.most_requests > found.requests else ""
    of_all = f"of {found.replicas} replicas" if found.replicas > 1 else ""
    rows.append(("requests at once", count(found.requests), "", f"{up_to} {of_all}".strip()))
    longest = "any" if one.largest_length == ENDLESS else count(one.largest_length)
    rows.append((f"largest length of {count(run.batch)} at once", longest, "", "tokens"))
    shared = f"tensor_parallel {run.tensor_parallel}"
    if run.expert_parallel > 1:
        shared += f", expert_parallel {run.expert_parallel}"
    formats = f"weights {run.weights}, cache {run.cache_dtype}, dtype {run.dtype}"
    several = f"{count(found.devices)} × " if found.devices > 1 else ""
    title = f"{found.model} on {several}{found.accelerator.name}, {shared}; {formats}"
    return Table(title, ("a device", "value", "how", "note"), rows, texts=("how", "note"))
