"""`modelbudget models [WORDS]`: find a published model, or those that fit a device."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from modelbudget.api.chosen_device import ChosenDevice
from modelbudget.api.class_answers import WITHOUT_FORMULA
from modelbudget.api.command import options
from modelbudget.api.command.text_table import Table
from modelbudget.api.find import CATALOGUE
from modelbudget.api.fitting import graded
from modelbudget.api.model import Model
from modelbudget.catalogue.named_models import RELEASED, Base, all_models
from modelbudget.common.errors import InputError
from modelbudget.common.number_format import count, counted, si_bytes

NOT_IN_NUMBER = r"(?!(?<=\d)\d)"
"""After a word: qwen-3 is in no Qwen-32B."""


@options.expanded
def run(
    words: Annotated[list[str] | None, typer.Argument(help="All must be in the name.")] = None,
    *,
    fit: Annotated[str | None, "Which fit? h100-80gb, 24GB, …", "ACCELERATOR"] = None,
    train: Annotated[bool, "With --fit: in training, not in inference."] = False,
    of_run: options.RunOptions,
    printed: options.Output,
) -> None:
    """List published models, with their parameters and family; with --fit, which fit a device.

    Without words --fit tries those alone that the report has.
    """
    wanted = [re.compile(re.escape(word.casefold()) + NOT_IN_NUMBER) for word in words or ()]
    bases = all_models(CATALOGUE)
    matching = [base for base in bases if all(word.search(_text(base)) for word in wanted)]
    if not matching:
        asked = " ".join(words or ())
        raise InputError([f"models {asked}: none; `modelbudget models` lists all {len(bases)}"])
    settings, lost, of_fit = of_run.settings(), list[str](), ()
    if fit is None:
        if settings or train:
            raise InputError(["models: settings of a run: allowed with --fit ACCELERATOR"])
        rows, title = [_row(base) for base in matching], counted(len(matching), "model")
    else:
        on, of_fit = ChosenDevice(fit), ("peak", "grade")
        is_trained = train or settings.get("adapter", "none") != "none"
        tried = [base for base in matching if words or not _is_by_name_alone(base)]
        by_model, lost = _graded(tried, on, settings, is_trained)
        rows = [row for row in by_model if row["grade"] != "does not fit"]
        rows.sort(key=lambda row: -row["parameters"])
        device, purpose = on.accelerator(), "training" if is_trained else "inference"
        of = f"{len(rows)} of {counted(len(by_model), 'model')}"
        title = f"{of} fit the {si_bytes(device.bytes)} of {device.name} in {purpose}"
    cells = [
        (r["name"], count(r["parameters"]), *((si_bytes(r["peak"]), r["grade"]) if of_fit else ()),
         r["label"], r["family"])
        for r in rows
    ]  # fmt: skip
    columns = ("name", "parameters", *of_fit, "label", "family")
    table = Table(title, columns, cells, (), ("family",), ("grade", "label", "family"))
    notes = [f"{counted(len(lost), 'model')} left out, such as {lost[0]}"] if lost else []
    printed.show({"models": rows}, rows, [table], notes)


def _graded(
    bases: list[Base], on: ChosenDevice, settings: Mapping[str, Any], training: bool
) -> tuple[list[dict], list[str]]:
    """Return a row of each model with its peak and grade, and why others have none.

    Without traces, which take long. Raises InputError if no model has one.
    """
    on.accelerator()  # is known, or an error now
    rows, lost = [], []
    for base in bases:
        try:
            peak, grade = graded(Model(base), on, settings, training)
            rows.append(_row(base) | {"peak": peak, "grade": grade})
        except InputError as error:
            lost += error.mistakes[:1]
    if not rows:
        raise InputError(lost[:1])
    return rows, lost


def _is_by_name_alone(base: Base) -> bool:
    return base.path is not None and base.path.parent.name == RELEASED


def _text(base: Base) -> str:
    same_shape = " ".join(base.model.same_shape) if base.model else ""
    return f"{base.name} {base.label} {base.series} {base.family.name()} {same_shape}".casefold()


def _row(base: Base) -> dict:
    return {
        "name": base.name,
        "parameters": _parameters(base),
        "label": base.label,
        "family": base.family.name(),
    }


def _parameters(base: Base) -> int:
    """Return the parameters of a model: by formula, or as its class was counted."""
    counted = base.model and base.model.exact
    if base.family.name() == WITHOUT_FORMULA and counted:
        return counted
    return Model(base).parameters().total
