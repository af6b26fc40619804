"""Whether a model fits an accelerator, and what would be the most that does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelbudget.api.frames import Frames, html_table
from modelbudget.api.lines_of_run import line_of_settings
from modelbudget.api.predictions import Predictions, predictions
from modelbudget.architecture.record import MAX_COUNT
from modelbudget.architecture.run_values import bytes_of
from modelbudget.catalogue.accelerators import Accelerator, all_accelerators, named_or_sized
from modelbudget.catalogue.implementations import OURS, TRANSFORMERS
from modelbudget.catalogue.memory_margins import Grade, Margins, memory_margins
from modelbudget.common.byte_sizes import EXAMPLES, size
from modelbudget.common.errors import InputError
from modelbudget.common.paths import CONFIGS
from modelbudget.common.validation_messages import show
from modelbudget.predict import prediction_or_reason
from modelbudget.sweeps.compared import not_compared_at

if TYPE_CHECKING:
    from modelbudget.api.changes import Change
    from modelbudget.api.chosen_model import ChosenModel, Settings
    from modelbudget.api.layouts_that_fit import Layouts
    from modelbudget.architecture.base import Architecture
    from modelbudget.architecture.run_config import RunConfig
    from modelbudget.predict.largest_that_fits import Solution


@dataclass(frozen=True)
class Fit(Frames):
    """Predicted bytes on each device, and the largest batch and length that fit.

    `needed` are the bytes of `run`, for the `purpose` training or inference: of our modules by
    formula, or of a class that only a trace answers (`why`): of it the largest batch is traced, and
    no length. `largest` and `largest_of_class` are by field, the second with the settings of the
    model's class in `transformers`, if they are known, and `largest_with_margins` what fits with
    the reserve and the worst published reading too: `largest_with_expandable_segments` in training
    where PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets the allocator's segments grow.
    `sharing` are the settings by which several devices share the model, with their chosen values.
    `layouts` are all ways in which several devices can share the training of the model.
    """

    model: str
    purpose: str
    run: RunConfig
    accelerator: Accelerator
    devices: int
    needed: int
    largest: dict[str, Solution]
    largest_of_class: dict[str, Solution]
    largest_with_margins: dict[str, Solution]
    largest_with_expandable_segments: dict[str, Solution]
    margins: Margins
    sharing: dict[str, int]
    layouts: Layouts | None = None
    why: str | None = None
    changes: tuple[Change, ...] = ()
    together: Change | None = None

    @property
    def fits(self) -> bool:
        """Whether the run fits as it is given, at least tightly."""
        return self.needed <= self.accelerator.bytes

    @property
    def grade(self) -> Grade:
        """Whether the run fits with the margins, without them (tight), or not at all."""
        return self.margins.grade(self.needed, self.accelerator.bytes)

    def as_dict(self) -> dict:
        """Return plain values, for JSON."""
        return {
            "purpose": self.purpose,
            "settings": line_of_settings(self.run),
            "accelerator": self.accelerator.name,
            "memory": self.accelerator.bytes,
            "memory_source": self.accelerator.source,
            "devices": self.devices,
            "sharing": self.sharing,
            "needed": self.needed,
            "fits": self.fits,
            "grade": self.grade,
            "reserve": self.margins.reserve.bytes,
            "reserve_source": self.margins.reserve.source,
            "worst_ratio": self.margins.worst_ratio.value,
            "worst_ratio_source": self.margins.worst_ratio.source,
            "largest": _values(self.largest),
            "largest_with_margins": _values(self.largest_with_margins),
            "largest_with_expandable_segments": _values(self.largest_with_expandable_segments),
            "largest_of_class": _values(self.largest_of_class),
            "not_solved": self.why,
            "changes": [change._asdict() for change in self.changes],
            "together": self.together and self.together._asdict(),
        } | ({"layouts": self.layouts.rows()} if self.layouts else {})

    def rows(self) -> list[dict]:
        """Return one row for each solved field: the largest value that fits; one if none is."""
        values = self.as_dict()
        of_run = ("purpose", "accelerator", "devices", "needed", "fits", "grade", "reserve",
                  "worst_ratio")  # fmt: skip
        solved = ("largest", "largest_with_margins", "largest_of_class")
        return [
            {
                "model": self.model,
                **{name: values[name] for name in of_run},
                "field": field or None,
                **{name: values[name].get(field) for name in solved},
            }
            for field in self.largest or ("",)
        ]

    def __str__(self) -> str:
        room = f"{self.needed:,} of {self.accelerator.bytes:,} bytes on {self.accelerator.name}"
        return f"{self.model}: {self.purpose} {self.grade}, {room}; {line_of_settings(self.run)}"

    def __repr__(self) -> str:
        return f"<Fit of {self}>"

    def _repr_html_(self) -> str:
        return html_table(str(self), self.rows())


def _values(solutions: dict[str, Solution]) -> dict[str, int]:
    return {name: solution.value for name, solution in solutions.items()}


def reserve_of(reserve: str | int | None) -> int | None:
    """Return a reserve in bytes; None for that of the data file. Raises InputError."""
    if reserve is None or (type(reserve) is int and reserve >= 0):
        return reserve
    n_bytes = size(reserve) if isinstance(reserve, str) else None
    if n_bytes is None or n_bytes > MAX_COUNT:
        raise InputError([f"--reserve {show(reserve)}: no size in bytes; allowed: {EXAMPLES}"])
    return n_bytes


def accelerator(name: str, file: str | Path | None = None, option: str = "--fit") -> Accelerator:
    """Return an accelerator by its name, with or without its memory, or by a size.

    h100, h100-80gb and rtx-4090 have the bytes that their driver reports; 24GB has 24 · 10⁹, 24GiB
    24 · 2³⁰. Names are those of `file`, or of the shipped configs/accelerators.yaml. Raises
    InputError with the option that gave it and all names.
    """
    known = all_accelerators(Path(file) if file is not None else CONFIGS / "accelerators.yaml")
    try:
        return named_or_sized(name, known)
    except ValueError as error:
        whose = f"{file}: " if file is not None else ""
        raise InputError([f"{option} {name}: {whose}{error}"]) from None


def sharing(devices: int, training: bool) -> dict[str, int]:
    """Return the settings by which several devices share a model, if none is chosen.

    In training shards of `zero: 3`; in inference shares of `tensor_parallel`.
    """
    if devices == 1:
        return {}
    return {"zero": 3, "data_parallel": devices} if training else {"tensor_parallel": devices}


def left_out_bytes(model: ChosenModel, chosen: Mapping[str, Any]) -> int:
    """Return the weights, in the run's dtype, of what a file has beside its language model."""
    if not model.base.left_out:
        return 0
    return model.base.left_out * bytes_of(model.with_run(chosen)[1].dtype)


def settings_on(
    device: Accelerator, model: ChosenModel, settings: Settings, training: bool
) -> dict[str, Any]:
    """Return settings with the precision, kernel and optimizer that torch takes on a device.

    Of those that nobody has set, where the default is not that of CUDA from 8.0 on.
    """
    from modelbudget.api.chosen_model import fields_of
    from modelbudget.api.class_answers import run_of
    from modelbudget.sweeps.device_defaults import device_defaults, where

    fields = fields_of(settings)
    if (platform := where(device, training)) == "cuda":
        return fields
    base = model.base
    is_set = {*base.fields, *base.derive, *model.chosen, *fields}
    of_cuda = device_defaults(base.family)
    for name, default in device_defaults(base.family, platform).items():
        architecture, run = run_of(model, fields)
        values = vars(architecture) | vars(run)
        is_default = name not in is_set and getattr(run, name) == of_cuda[name](values)
        if is_default and (value := default(values)) != getattr(run, name):
            fields[name] = value
    return fields


def _not_solved(
    model: ChosenModel, quantity: str, pair: tuple[Architecture, RunConfig], devices: int
) -> str | None:
    """Return why no formula says what a run needs; None if one does."""
    if why := prediction_or_reason.why_not(quantity, *pair):
        return f"{quantity} on {devices} devices: {why}" if devices > 1 else f"{quantity}: {why}"
    why = not_compared_at(quantity, model.base.transformers, model.base.config, *pair)
    solved = f"and what fits is solved by formula; allowed: implementation: {OURS}"
    return f"{quantity}: {why}, {solved}" if why else None


def _of_class(quantity: str, run: Predictions) -> int | None:
    """Return the bytes of a class that leads the answer about a run; None without such a class."""
    leads = run.run.implementation == TRANSFORMERS and quantity in run.breakdowns
    return run[quantity].total if leads else None


def _traced_batches(
    model: ChosenModel, quantity: str, chosen: Settings, known: dict[int, int], rooms: Sequence[int]
) -> list[dict[str, Solution]]:
    """Return the largest batch for each room, of a class of which traces say what a batch needs.

    `known`: bytes by batch. Nothing for all rooms if traces do not say it for one.
    """
    from modelbudget.api.traced_batch import largest_batch

    def trace(batch: int) -> int | None:
        try:
            return _of_class(quantity, predictions(model, [quantity], {**fields, "batch": batch}))
        except InputError:  # more than a batch may be
            return None

    fields = dict(chosen or {})
    batches = [largest_batch(known, trace, room) for room in rooms]
    return [{"batch": batch} if batch and None not in batches else {} for batch in batches]


def fit(
    model: ChosenModel,
    name: str,
    settings: Settings,
    devices: int,
    training: bool,
    reserve: str | int | None = None,
    accelerators: str | Path | None = None,
    predicted: Predictions | None = None,
) -> Fit:
    """Solve for the largest batch and length; several devices share the model as `sharing` says.

    Training on several devices is predicted in all other layouts too. `predicted` is what is known
    of the same run already: of a class without a formula traces say whether the run and others fit.
    """
    from modelbudget.api.changes import changes
    from modelbudget.api.chosen_model import fields_of
    from modelbudget.api.class_answers import leads, run_of
    from modelbudget.api.layouts_that_fit import layouts
    from modelbudget.predict.largest_that_fits import as_class, at, at_default, needed, solve
    from modelbudget.sweeps.device_defaults import DECIDED, KERNEL, where

    device = accelerator(name, accelerators).with_occupied(
        left_out_bytes(model, fields_of(settings))
    )
    margins = memory_margins().on(device.platform, reserve_of(reserve))
    purpose, quantity = ("training", "peak_training_bytes") if training else (
        "inference", "peak_inference_bytes")  # fmt: skip
    chosen = settings_on(device, model, settings, training)
    by = sharing(devices, training)
    pair = run_of(model, by | chosen)
    if why := _not_solved(model, quantity, pair, devices):
        if predicted is None and devices == 1:
            predicted = predictions(model, [quantity], chosen)
        n_bytes = _of_class(quantity, predicted) if predicted and devices == 1 else None
        if predicted is None or n_bytes is None:
            lost = predicted.missing.get(quantity) if predicted else None
            for n in range(devices - 1, 0, -1) if not training else [1] * (devices > 1):
                by_fewer = sharing(n, training) | chosen
                if not _not_solved(model, quantity, run_of(model, by_fewer), n):
                    why += f"; {'or' if 'allowed: ' in why else 'allowed:'} --devices {n}"
                    break
            raise InputError(
                [f"{model.name}: {quantity}: {lost}" if lost else f"{model.name}: {why}"]
            )
        rooms = device.bytes, margins.room(device.bytes)
        batches = _traced_batches(model, quantity, chosen, {predicted.run.batch: n_bytes}, rooms)
        return Fit(model.label, purpose, predicted.run, device, 1, n_bytes, batches[0], {},
                   batches[1], {}, margins, {}, why=f"{model.name}: {why}")  # fmt: skip
    is_kernel_set = KERNEL in {**model.chosen, **fields_of(settings)}
    at_value = at if is_kernel_set else partial(at_default, device=where(device, training))
    chosen = {name: getattr(pair[1], name) for name in DECIDED} | chosen
    shared = layouts(model, device, chosen, devices, margins) if training and devices > 1 else None
    chosen = by | chosen
    pair = model.with_run(chosen)
    as_built = as_class(pair, model.base.transformers, purpose, model.base.config)

    def largest(of, room: int, at_value=at) -> dict[str, Solution]:
        fields = "batch", "length"
        solutions = {field: solve(of, field, purpose, room, at_value) for field in fields}
        return {field: solution for field, solution in solutions.items() if solution is not None}

    n_bytes = needed(pair, purpose)
    assert n_bytes is not None  # `why_not` has checked that
    room = margins.room(device.bytes)
    with_segments = margins.with_expandable_segments().room(device.bytes)
    helpful, together = [], None
    is_class = leads(model, {**model.chosen, **fields_of(settings)})
    of_class = needed(as_built, purpose) if is_class and as_built else None
    if max(n_bytes, of_class or 0) > room:

        def run_with(fields: Mapping[str, Any]) -> tuple[Architecture, RunConfig]:
            """Return what answers with these fields: the class where it leads.

            Of adapters and quantised weights our modules. Raises InputError if neither can.
            """
            changed = model.with_run(settings_on(device, model, dict(fields), training))
            run = changed[1]
            if run.implementation != OURS and (
                why := _not_solved(model, quantity, changed, devices)
            ):
                raise InputError([why])
            if of_class is None:
                return changed
            as_changed = as_class(changed, model.base.transformers, purpose, model.base.config)
            if as_changed is None and (run.adapter, run.weights) == ("none", "dtype"):
                raise InputError([f"{model.name}: the class has no such run"])
            return as_changed or changed

        helpful, together = changes(
            model, run_with, by | fields_of(settings), device, room, purpose
        )
    return Fit(
        model.label,
        purpose,
        pair[1],
        device,
        devices,
        n_bytes,
        largest(pair, device.bytes, at_value),
        largest(as_built, device.bytes) if as_built else {},
        largest(pair, room, at_value),
        largest(pair, with_segments, at_value) if training and device.platform == "cuda" else {},
        margins,
        {field: chosen[field] for field in by},
        shared,
        changes=tuple(helpful),
        together=together,
    )
