"""`modelbudget models [WORDS]`: find a published model, or those that fit a device."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from modelbudget.api.changes import Purpose
from modelbudget.api.chosen_device import ChosenDevice, settings_on
from modelbudget.api.class_answers import WITHOUT_FORMULA
from modelbudget.api.command import options
from modelbudget.api.command.text_table import Table
from modelbudget.api.find import CATALOGUE
from modelbudget.api.model import Model
from modelbudget.catalogue.named_models import RELEASED, Base, all_models
from modelbudget.common.errors import InputError
from modelbudget.common.number_format import count, counted, si_bytes

NOT_IN_NUMBER = r"(?!(?<=\d)(\d|\.\d+[bm]))"
"""After a word: qwen-3 is in no Qwen-32B, gpt-2 in no GPT-2.7B."""


@options.expanded
def run(
    words: Annotated[list[str] | None, typer.Argument(help="All must be in the name.")] = None,
    *,
    fit: Annotated[str | None, "Which fit? h100-80gb, 24GB, …", "ACCELERATOR"] = None,
    train: Annotated[bool, "With --fit: in training, not in inference."] = False,
    of_run: options.RunOptions,
    printed: options.Output,
) -> None:
    """List published models, with --fit those that fit a device.

    Without words --fit tries those alone that the report has.
    """
    wanted = [re.compile(re.escape(word.casefold()) + NOT_IN_NUMBER) for word in words or ()]
    bases = all_models(CATALOGUE)
    matching = [base for base in bases if all(word.search(_text(base)) for word in wanted)]
    if not matching:
        asked = " ".join(words or ())
        raise InputError([f"models {asked}: none; `modelbudget models` lists all {len(bases)}"])
    settings, columns = of_run.settings(), ["name", "parameters", "label", "family"]
    lost = list[str]()
    if fit is not None:
        purpose = "training" if train or settings.get("adapter", "none") != "none" else "inference"
        if not words:
            matching = [of for of in matching if not (of.path and of.path.parent.name == RELEASED)]
        rows, lost, title = _fitting(matching, ChosenDevice(fit), settings, purpose)
        columns[2:2] = ["peak", "grade"]
    elif settings or train:
        raise InputError(["models: settings of a run: allowed with --fit ACCELERATOR"])
    else:
        rows, title = [_row(base) for base in matching], counted(len(matching), "model")
    texts = {"parameters": count, "peak": si_bytes}
    cells = [tuple(texts.get(name, str)(row[name]) for name in columns) for row in rows]
    table = Table(title, tuple(columns), cells, (), ("family",), ("grade", "label", "family"))
    notes = [f"{counted(len(lost), 'model')} without an answer: {lost[0]}"] if lost else []
    printed.show({"models": rows}, rows, [table], notes)


def _fitting(
    bases: list[Base], on: ChosenDevice, settings: Mapping[str, Any], purpose: Purpose
) -> tuple[list[dict], list[str], str]:
    """Return the models that fit, the largest first, why others have no prediction, and a title.

    Raises InputError if no model has one.
    """
    rows, quantity = [], f"peak_{purpose}_bytes"
    accelerator, lost = on.accelerator(), list[str]()
    for base in bases:
        model = Model(base)
        try:
            device = on.accelerator_with(model, settings)
            run = settings_on(device, model, settings, purpose == "training")
            if why := model.why_not(quantity, run):  # a trace would take long
                raise InputError([f"{model.name}: {quantity}: {why}"])
            peak = model.predict(quantity, run).total
            grade = on.margins_on(device).grade(peak, device.bytes)
            rows.append(_row(base) | {"peak": peak, "grade": grade})
        except InputError as error:
            lost += error.mistakes[:1]
    if not rows:
        raise InputError(lost[:1])
    fitting = [row for row in rows if row["grade"] != "does not fit"]
    of = f"{len(fitting)} of {counted(len(rows), 'model')} with a formula fit"
    title = f"{of} the {si_bytes(accelerator.bytes)} of {accelerator.name} in {purpose}"
    return sorted(fitting, key=lambda row: -row["parameters"]), lost, title


def _text(base: Base) -> str:
    same_shape = " ".join(base.model.same_shape) if base.model else ""
    return f"{base.name} {base.label} {base.series} {base.family.name()} {same_shape}".casefold()


def _row(base: Base) -> dict:
    """Return a row of a model: its parameters by formula, or as its class was counted."""
    family, n = base.family.name(), base.model and base.model.exact
    if family != WITHOUT_FORMULA or not n:
        n = Model(base).parameters().total
    return {"name": base.name, "parameters": n, "label": base.label, "family": family}
