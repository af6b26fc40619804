"""Tables of what an accelerator has room for: runs, changes that need less, layouts of devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from modelbudget.api.chosen_device import n_sharing
from modelbudget.api.command.text_table import Table
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import OURS, TRANSFORMERS
from modelbudget.common.byte_sizes import AS_GIVEN
from modelbudget.common.number_format import count, counted, si_bytes
from modelbudget.common.validation_messages import show
from modelbudget.sweeps.fields_in_words import in_words

if TYPE_CHECKING:
    from modelbudget.api.changes import MemoryChange
    from modelbudget.api.fitting import Fit
    from modelbudget.api.layouts_that_fit import Layouts
    from modelbudget.api.predictions import Predictions
    from modelbudget.api.trainers import Trained

MODULES = "modelbudget's modules"
SEGMENTS = "  expandable_segments:True"
"""What PYTORCH_CUDA_ALLOC_CONF may say, below the largest batch or length."""
MOST_CHANGES = 8
"""Changes that are shown, and characters of what they set."""
OF_CHANGES = {
    "training": ("", "trains something else, or other weights"),
    "inference": (" in inference", "other weights"),
}
"""Purpose → what the title of its changes says of it, and of those with a star."""


def class_in_room(fit: Fit, predicted: Predictions) -> dict[str, Any] | None:
    """Return whether the class fits that leads the answer, as plain values; None without one."""
    quantity = f"peak_{fit.purpose}_bytes"
    if predicted.run.implementation != TRANSFORMERS or quantity not in predicted.breakdowns:
        return None
    needed = predicted[quantity].total
    return {
        "implementation": predicted.whose,
        "needed": needed,
        "fits": needed <= fit.accelerator.bytes,
        "grade": fit.margins.grade(needed, fit.accelerator.bytes),
    }


def not_solved(fit: Fit) -> str:
    """Return what was not solved, of a fit that says why."""
    if fit.largest:
        return "the largest batch was found by traces, and no length"
    return "largest batch and length are not solved"


def of_fits(fits: list[Fit], predicted: Predictions) -> Table:
    """Return what an accelerator has room for, and whether the class fits that leads the answer.

    The largest values are solved by the formulas of our modules, or traced, as title and rows say.
    """
    of_classes = [class_in_room(fit, predicted) for fit in fits]
    leads = any(of_classes)
    ours = f", {OURS}" if leads else ""
    rows = []
    for fit, of_class in zip(fits, of_classes, strict=True):
        of = f"of {si_bytes(fit.accelerator.bytes)}"
        if of_class is not None:
            room = f"{si_bytes(of_class['needed'])} {of}"
            rows.append((f"{fit.purpose}, {TRANSFORMERS}", of_class["grade"], room))
        if fit.why is None:
            rows.append((f"{fit.purpose}{ours}", fit.grade, f"{si_bytes(fit.needed)} {of}"))
        rows += _of_largest(fit)
    first = fits[0]
    device, reserve, worst = first.accelerator, first.margins.reserve, first.margins.worst_ratio
    source = AS_GIVEN if reserve.source == AS_GIVEN else "memory_margins.yaml"
    of_memory = f"{'' if device.source == AS_GIVEN else 'its '}{device.short_source}"
    rows += [
        ("memory", si_bytes(device.bytes), of_memory),
        ("margins: reserve", si_bytes(reserve.bytes), source),
        ("margins: worst reading", f"{worst.value} ×", "the prediction"),
    ]
    by = "; ".join(_sharing(fit) for fit in fits if fit.sharing)
    shared = f", each of {count(first.devices)}: {by}" if by else ""
    if leads or any(fit.largest_of_class for fit in fits):
        whose = f"; {OURS}: its own modules, {TRANSFORMERS}: the class"
        return Table(f"{device.name}{shared}{whose}", ("", "", ""), rows)
    return Table(f"{device.name}{shared}", ("", MODULES, ""), rows)


def _sharing(fit: Fit) -> str:
    """Return how devices share a model: in training those alone that the mesh has."""
    n = n_sharing(fit.sharing)
    some = f", on {count(n)} of them" if fit.purpose == "training" and n < fit.devices else ""
    settings = ", ".join(f"{name}: {value}" for name, value in fit.sharing.items())
    return f"{fit.purpose} by {settings}{some}"


def _of_largest(fit: Fit) -> Iterator[tuple[str, str, str]]:
    """Yield the largest batch and length that fit, and what they are with other code."""
    for name, solution in fit.largest.items():
        with_margins = fit.largest_with_margins[name].value
        largest, margins = count(solution.value), f"{count(with_margins)} with margins"
        yield f"{fit.purpose}: largest {name}", largest, margins
        n = fit.run.n_microbatch  # the largest length is that of microbatches of one sequence
        if name == "length" and fit.run.batch != n:
            yield f"  of batch {n}", "", ""
        growing = fit.largest_with_expandable_segments.get(name)
        if growing and growing.value > with_margins:
            yield SEGMENTS, "", f"{count(growing.value)} with margins"
        if largest_of_class := fit.largest_of_class.get(name):
            of_margins = fit.largest_of_class_with_margins.get(name)
            margins = f"{count(of_margins.value)} with margins" if of_margins else ""
            yield "  as the class", count(largest_of_class.value), margins


def of_changes(fit: Fit | Trained, of_class: int | None = None) -> Table:
    """Return the changes by which a run needs less, each alone, and several together.

    `of_class`: what the class needs that leads the answer; where it was traced they are not its.
    """
    assert fit.margins is not None  # nothing is changed without a device
    assert fit.accelerator is not None
    rows = [_change(change, fit.run) for change in fit.changes[:MOST_CHANGES]]
    of, star = OF_CHANGES[fit.purpose]
    now = fit.changes[0].needed + fit.changes[0].saves  # of the class, where the answer is
    whose = f", {MODULES}" if of_class not in (None, now) else ""
    notes = f"{si_bytes(now)} now{whose}; * {star}"
    if (all_of := fit.together) is not None:
        grade = fit.margins.grade(all_of.needed, fit.accelerator.bytes)
        how = "together" if "," in all_of.text else "one of them"
        rows.append((f"{how}: {grade}", "", si_bytes(all_of.needed), si_bytes(all_of.saves)))
        rows += [(f"  {text}", "", "", "") for text in all_of.text.split(", ")]
        batch = all_of.fields.get("n_microbatch", fit.run.n_microbatch)
        of_one = {"length": f" of batch {batch}"}
        with_margins = all_of.largest_with_margins or {}
        for name, n in (all_of.largest or {}).items():
            margins = f"{count(with_margins.get(name, 0))} with margins"
            rows.append((f"  largest {name}{of_one.get(name, '')}", margins, count(n), ""))
    return Table(f"What needs less{of}: {notes}", ("change", "--set", "peak", "less"), rows,
                 before_names=("less",), texts=("--set",))  # fmt: skip


def _change(change: MemoryChange, run: RunConfig) -> tuple[str, str, str, str]:
    """Return the cells of a change; without what the run has anyhow, and no other field changes."""
    follows = RunConfig.derivations()
    fields = ", ".join(
        f"{name}={show(value).strip(chr(39))}"
        for name, value in change.fields.items()
        if name in follows or getattr(run, name) != value
    )
    star = "*" if change.alters else ""
    return f"{change.text}{star}", fields, si_bytes(change.needed), si_bytes(change.saves)


def of_layouts(layouts: Layouts, whose: str) -> list[Table]:
    """Return the layouts of all devices that fit, and the least bytes by number of devices.

    `whose`: the implementation whose memory it is.
    """
    grades = layouts.of_all["grade"]
    fitting, tight = (int((grades == name).sum()) for name in ("fits", "tight"))
    unknown = grades.null_count()
    without = f", not computed {count(unknown)}" if unknown else ""
    title = (
        f"{count(layouts.devices)} devices of {si_bytes(layouts.accelerator.bytes)}, this batch on "
        f"each replica, for the implementation {whose}: fits {count(fitting)} of "
        f"{counted(len(grades), 'layout')}, tight {count(tight)}{without}"
    )
    columns = ("layout", "recompute", "grade", "bytes per device", "margin", "largest batch",
               "length")  # fmt: skip
    rows = [
        (in_words(row), row["recompute"], row["grade"], si_bytes(row["bytes"]),
         si_bytes(row["margin"]),
         count(row["largest_batch"]), count(row["largest_length"]))
        for row in layouts.offered
    ]  # fmt: skip
    least = ", ".join(f"{name} from {count(n)} on" for name, n in layouts.fewest.items())
    none = "none fits" if layouts.table["bytes"].count() else "no layout was computed"
    front = [
        (count(row["devices"]), in_words(row), row["recompute"], si_bytes(row["bytes"]),
         row["grade"])
        for row in layouts.pareto.iter_rows(named=True)
    ]  # fmt: skip
    return [
        Table(title, columns, rows, texts=("recompute", "grade")),
        Table(
            f"Least bytes per device, by number of devices: {least or none}",
            ("devices", "layout", "recompute", "bytes per device", "grade"),
            front,
            texts=("layout", "recompute", "grade"),
        ),
    ]
