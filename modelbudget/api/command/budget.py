"""The answer of `modelbudget MODEL`: its budget and, with --fit, whether that fits a device."""

from itertools import chain
from typing import Any, NamedTuple

import typer

from modelbudget.api.chosen_device import ChosenDevice, n_sharing, settings_on, sharing
from modelbudget.api.command import output
from modelbudget.api.command.budget_table import (
    as_dict,
    notes,
    of_components,
    of_totals,
    quantities,
)
from modelbudget.api.command.checkpoint_table import of_differences, summary
from modelbudget.api.command.notes_of_fit import other_than_cuda, served_by_engine
from modelbudget.api.command.option_words import repeated
from modelbudget.api.command.options import Output
from modelbudget.api.command.output import DIFFERS
from modelbudget.api.command.tables_of_fit import (
    class_in_room,
    not_solved,
    of_changes,
    of_fits,
    of_layouts,
)
from modelbudget.api.command.text_table import Table
from modelbudget.api.fitting import Fit
from modelbudget.api.fitting import fit as fit_to
from modelbudget.api.model import Model, model_with
from modelbudget.api.predictions import Predictions, merged
from modelbudget.catalogue.implementations import OURS
from modelbudget.common.errors import InputError
from modelbudget.common.number_format import count


class Purposes(NamedTuple):
    """For what a model is used: `train` or `inference` alone where one is asked for, else both."""

    train: bool
    inference: bool

    def has(self, training: bool) -> bool:
        return not (self.inference if training else self.train)


def show(
    name: str, settings: dict[str, Any], purposes: Purposes, devices: int,
    device: ChosenDevice | None, printed: Output,
) -> None:  # fmt: skip
    """Print the budget of a model, and below its tables what a reader must know.

    `device`: what it has to fit. Of adapters on a device that of training is meant. Exit code 1 if
    a checkpoint differs.
    """
    if device and not purposes.inference and settings.get("adapter", "none") != "none":
        purposes = purposes._replace(train=True)
    model = model_with(name, settings, sharing(devices, not purposes.inference, settings))
    by_purpose = _predicted(model, settings, purposes, devices, device)
    predicted = by_purpose[True]
    if by_purpose[False] is not predicted:
        predicted = merged(by_purpose[True], by_purpose[False])
    fits, refusals = [], []
    if device:
        fits, refusals = _fitted(model, settings, purposes, device, by_purpose)
    if refusals and not fits:
        raise InputError([*dict.fromkeys(refusals)])
    stored = model.checkpoint()
    if printed.json:
        content = as_dict(predicted)
        if device:
            content["fit"] = [
                fit.as_dict() | {"of_class": class_in_room(fit, predicted)} for fit in fits
            ]
        if stored:
            content |= {"checkpoint": stored.rows(), "tensors": stored.names()}
        output.print_json(content)
    elif printed.csv:
        output.print_csv([row for fit in fits for row in fit.rows()] or predicted.rows())
    elif not predicted.breakdowns:
        raise InputError([f"{name}: {why}" for why in dict.fromkeys(predicted.missing.values())])
    else:
        components = of_components(predicted)
        whose = settings.get("implementation", OURS)
        # how it fits is the answer, and stands in the place of components
        first = _of_room(predicted, fits, components.title, whose) if fits else [components]
        differences = of_differences(stored) if stored else []
        tables = [*first, of_totals([predicted]), *differences]
        output.print_tables(tables, printed.markdown)
        output.print_notes(notes(predicted))
    if devices > 1 and not (device or purposes.inference):
        n, of_all = n_sharing(vars(predicted.run)), f"of {count(devices)} devices"
        if not purposes.train:
            refusals.append(f"training on {count(n)} devices by zero: 3; also: --inference")
        if n < devices:
            refusals.append(f"{count(n)} {of_all}; --fit ACCELERATOR searches layouts {of_all}")
    output.print_notes(refusals)
    output.print_notes(other_than_cuda(model, fits, settings))
    output.print_notes(f"{not_solved(fit)}: {fit.why}" for fit in fits if fit.why)
    if stored:
        output.print_notes([summary(stored)])
        if not stored.agrees:
            raise typer.Exit(DIFFERS)


def _predicted(
    model: Model, settings: dict[str, Any], purposes: Purposes, devices: int,
    device: ChosenDevice | None,
) -> dict[bool, Predictions]:  # fmt: skip
    """Return what is predicted of training, by True, and of inference.

    That is the same for both, unless torch has other kernels for training than for inference.
    """
    accelerator = device and device.accelerator()
    trained, used = (
        settings_on(accelerator, model, settings, training) if accelerator else settings
        for training in (True, False)
    )
    of_training = purposes.train or (devices > 1 and not purposes.inference)
    asked = quantities(of_training, purposes.inference)
    if trained == used or of_training or purposes.inference:
        shared = sharing(devices, not purposes.inference, settings)
        both = model.predictions(asked, shared | (used if purposes.inference else trained))
        return {True: both, False: both}
    of_trained = quantities(True, False)
    used_alone = [quantity for quantity in asked if quantity not in of_trained]
    return {
        False: model.predictions(used_alone, used),
        True: model.predictions(of_trained, trained),
    }


def _fitted(
    model: Model, settings: dict[str, Any], purposes: Purposes, device: ChosenDevice,
    by_purpose: dict[bool, Predictions],
) -> tuple[list[Fit], list[str]]:  # fmt: skip
    """Return how each purpose fits, and why there is no answer about the others."""
    fits, refusals = [], []
    for training in (True, False):
        if not purposes.has(training):
            continue
        known = by_purpose[training] if device.devices == 1 else None
        try:
            fits.append(fit_to(model, device, settings, training, known))
        except InputError as error:
            served = repeated(settings, serve=device.name, **device.options())
            more = "" if training else f"; of an engine:{served}"
            refusals += [line + (more if "not known" in line else "") for line in error.mistakes]
    return fits, refusals + served_by_engine(model, fits, device, settings)


def _of_room(predicted: Predictions, fits: list[Fit], title: str, whose: str) -> list[Table]:
    """Return whether a model fits, what would make it fit, and the layouts of several devices."""
    room = of_fits(fits, predicted)
    tables = [room._replace(title=f"{title}; on {room.title}")]
    for fit in fits:
        if fit.changes:
            of_class = class_in_room(fit, predicted)
            tables.append(of_changes(fit, of_class["needed"] if of_class else None))
    of_all = [of_layouts(fit.layouts, whose) for fit in fits if fit.layouts]
    return [*tables, *chain.from_iterable(of_all)]
