"""Predicted quantities of models as tables, as plain values and in notes."""

from itertools import chain

from modelbudget.api.breakdown import FORMULA
from modelbudget.api.command.text_table import Table
from modelbudget.api.lines_of_run import numbers_of_gradients
from modelbudget.api.predictions import (
    OF_INFERENCE,
    OF_TRAINING,
    OF_WEIGHTS,
    QUANTITIES,
    Predictions,
)
from modelbudget.architecture.run_adapter import is_partial
from modelbudget.architecture.run_values import division
from modelbudget.common.number_format import capitalized, count, percent, short, si_bytes, si_flops
from modelbudget.predict.by_program import trained_parameters
from modelbudget.sweeps.fields_in_words import UNITS

PHASES = {
    "forward_backward": "  in the forward and backward pass",
    "optimizer": "  in the optimizer's step",
}
"""The phases of training steps by the ends of their names, and the titles of their peaks."""


def quantities(train: bool, inference: bool) -> list[str]:
    wanted = set(OF_WEIGHTS)
    wanted |= set(OF_TRAINING) if train or not inference else set()
    wanted |= set(OF_INFERENCE) if inference or not train else set()
    return [quantity for quantity in QUANTITIES if quantity in wanted]


def as_dict(predicted: Predictions) -> dict:
    """Return plain values with exact numbers, for JSON."""
    architecture, run = predicted.model.with_run(predicted.run)
    return {
        "model": predicted.model.name,
        "label": predicted.model.label,
        "family": architecture.name(),
        "implementation": predicted.whose,
        "source": "; ".join(dict.fromkeys(of.source for of in predicted.breakdowns.values())),
        "architecture": architecture.model_dump(),
        "run": run.model_dump(),
        "quantities": {
            quantity: {
                "total": breakdown.total,
                "source": breakdown.source,
                "components": {part.name: part.value for part in breakdown.components},
            }
            for quantity, breakdown in predicted.breakdowns.items()
        },
        "active_parameters": predicted.active_parameters,
        "missing": predicted.missing,
        "notes": [*predicted.notes, *predicted.notes_of_file],
    }


def of_components(predicted: Predictions) -> Table:
    """Return the table of parameters, and of FLOPs where they are known, by component."""
    title = f"{predicted.model.label}: {predicted.settings}; {predicted.how}"
    if "parameters" not in predicted.breakdowns:
        return Table(title, ("component",), [(f"parameters: {predicted.missing['parameters']}",)])
    parameters = predicted["parameters"]
    flops = predicted.breakdowns.get("flops_forward")
    parts = {part.name: part for part in parameters.components}
    of_flops = {part.name: part for part in flops.components} if flops else {}
    rows, shares = [], []
    for name in dict.fromkeys((*parts, *of_flops)):
        part, work = parts.get(name), of_flops.get(name)
        row = [name, "", count(part.value) if part else ""]
        if part and part.instances > 1:
            row[1] = f"{count(part.instances)} × {count(part.each)}"
        row.append(percent(parameters.share(part)) if part else "")
        if flops:
            row += [si_flops(work.value), percent(flops.share(work))] if work else ["", ""]
        rows.append(tuple(row))
        shares.append(parameters.share(part) if part else 0.0)
    total = ["total", "", count(parameters.total), "100 %"]
    rows.append(tuple(total + ([si_flops(flops.total), "100 %"] if flops else [])))
    columns = ("component", "instances × each", "parameters", "share")
    columns += ("forward FLOPs", "share") if flops else ()
    return Table(title, columns, rows, tuple(shares), first_to_go=("share", "instances × each"))


def of_totals(several: list[Predictions]) -> Table:
    """Return the totals of one model or of several, one column each."""
    wanted = {q for of_model in several for q in (*of_model.breakdowns, *of_model.missing)}
    has_frozen = any(is_partial(predictions.run) for predictions in several)
    rows = []
    for quantity in QUANTITIES:
        if quantity in wanted:
            totals = (_total(of_model, quantity) for of_model in several)
            parts = [_parts(of_model, quantity, has_frozen) for of_model in several]
            rows.append((capitalized(UNITS[quantity]), *totals))
            rows += [
                (title, *(of_model.get(title, "") for of_model in parts))
                for title in dict.fromkeys(chain.from_iterable(parts))
            ]
    names = [predictions.model.label for predictions in several] if len(several) > 1 else ["value"]
    whose = ", ".join(dict.fromkeys(predictions.whose for predictions in several))
    is_shared = any(division(predictions.run) for predictions in several)
    of_device = "; bytes and FLOPs of one device" if is_shared else ""
    return Table(f"Totals, for the implementation {whose}{of_device}", ("quantity", *names), rows)


def _total(predicted: Predictions, quantity: str) -> str:
    if quantity in predicted.missing:
        return "none"
    how = "" if predicted[quantity].source == FORMULA else ", traced"
    return _amount(predicted[quantity].total, quantity) + how


def _parts(predicted: Predictions, quantity: str, has_frozen: bool) -> dict[str, str]:
    """Return what is shown below a total: active and trained parameters, and peaks by phase.

    `has_frozen`: whether this model, or one next to it, trains a part of its parameters alone.
    """
    if quantity == "parameters":
        has_trained = has_frozen and "gradient_bytes" in predicted.breakdowns
        counts = {
            "Active parameters, of a token": predicted.active_parameters,
            "Trained parameters": has_trained and _n_trained(predicted),
        }
        return {title: _amount(n, quantity) for title, n in counts.items() if n}
    if quantity == "peak_training_bytes" and quantity in predicted.breakdowns:
        steps = [(part.name, part.value) for part in predicted[quantity].components]
        peaks = {
            title: max((value for name, value in steps if name.endswith(phase)), default=0)
            for phase, title in PHASES.items()
        }
        if all(peaks.values()):
            return {title: _amount(peak, quantity) for title, peak in peaks.items()}
    return {}


def _n_trained(predicted: Predictions) -> int:
    """Count what a run trains; of a traced class, what has a gradient after it."""
    if predicted["gradient_bytes"].source == FORMULA:
        return trained_parameters(*predicted.model.with_run(predicted.run))
    return numbers_of_gradients(predicted.run, predicted.breakdowns)


def _amount(value: int, quantity: str) -> str:
    """Format a value for people, and exactly."""
    text = {"bytes": si_bytes, "FLOPs": si_flops}.get(UNITS[quantity].split()[0], short)
    rounded, whole = text(value), count(value)
    return rounded if whole in rounded else f"{rounded} ({whole})"


def notes(*several: Predictions) -> list[str]:
    """Return what a reader must know: reasons for gaps, and keys that are not used."""
    lines = []
    for predicted in several:
        for why in dict.fromkeys(predicted.missing.values()):
            names = [quantity for quantity, reason in predicted.missing.items() if reason == why]
            lines.append(f"{', '.join(names)}: {why}")
        about = (*predicted.notes, *predicted.notes_of_file)
        lines += [f"{predicted.model.name}: {note}" for note in about]
    return list(dict.fromkeys(lines))
