"""Whether a model fits an accelerator, and what would be the most that does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from modelbudget.api.chosen_device import ChosenDevice, settings_on, sharing
from modelbudget.api.chosen_model import ChosenModel, Settings, fields_of
from modelbudget.api.class_answers import leads, run_of
from modelbudget.api.frames import Frames
from modelbudget.api.lines_of_run import line_of_settings
from modelbudget.api.predictions import Predictions, predictions
from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.catalogue.implementations import OURS, TRANSFORMERS
from modelbudget.catalogue.memory_margins import Grade, Margins
from modelbudget.common.errors import InputError
from modelbudget.common.number_format import si_bytes
from modelbudget.measurement.reference.class_run import why_not_traced
from modelbudget.predict import prediction_or_reason
from modelbudget.sweeps.compared import not_compared_at
from modelbudget.sweeps.device_defaults import DECIDED, KERNEL, where

if TYPE_CHECKING:
    from modelbudget.api.changes import MemoryChange, Purpose
    from modelbudget.api.layouts_that_fit import Layouts
    from modelbudget.api.traced_batch import Peaks
    from modelbudget.predict.largest_that_fits import Solution

Pair = tuple[Architecture, RunConfig]
HELD = {
    "parameter_bytes": "parameters", "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer states",
}  # fmt: skip
"""What a device holds whatever it computes: in inference the first, in training all."""
LARGEST = ("largest", "largest_with_margins", "largest_with_expandable_segments",
           "largest_of_class", "largest_of_class_with_margins")  # fmt: skip
"""Solutions by field of a `Fit`, of which plain values have the value alone."""


@dataclass(frozen=True)
class Fit(Frames):
    """Predicted bytes on each device, and the largest batch and length that fit.

    `needed` are the bytes of `run`, for the `purpose` training or inference: of our modules by
    formula, or of a class that only a trace answers (`why`): of it the largest batch is traced, and
    no length. `largest` and `largest_of_class` are by field, the second with the settings of the
    model's class in `transformers`, if they are known, and `largest_with_margins` what fits with
    the reserve and the worst published reading too (`largest_of_class_with_margins` where the class
    leads the answer): `largest_with_expandable_segments` in training
    where PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets the allocator's segments grow.
    `sharing` are the settings by which several devices share the model, with their chosen values.
    `layouts` are all ways in which several devices can share the training of the model.
    """

    model: str
    purpose: str
    run: RunConfig
    family: type[Architecture]
    accelerator: Accelerator
    devices: int
    needed: int
    largest: dict[str, Solution]
    largest_of_class: dict[str, Solution]
    largest_of_class_with_margins: dict[str, Solution]
    largest_with_margins: dict[str, Solution]
    largest_with_expandable_segments: dict[str, Solution]
    margins: Margins
    sharing: dict[str, int]
    layouts: Layouts | None = None
    why: str | None = None
    changes: tuple[MemoryChange, ...] = ()
    together: MemoryChange | None = None

    @property
    def settings(self) -> str:
        """The settings of the run as text."""
        return line_of_settings(self.run, self.family)

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
            "settings": self.settings,
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
            **{
                name: {field: solution.value for field, solution in getattr(self, name).items()}
                for name in LARGEST
            },
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
        return f"{self.model}: {self.purpose} {self.grade}, {room}; {self.settings}"

    def __repr__(self) -> str:
        return f"<Fit of {self}>"


def _not_solved(model: ChosenModel, quantity: str, pair: Pair, devices: int) -> str | None:
    """Return why no formula says what a run needs; None if one does."""
    if why := prediction_or_reason.why_not(quantity, *pair):
        return f"{quantity} on {devices} devices: {why}" if devices > 1 else f"{quantity}: {why}"
    why = not_compared_at(quantity, model.base.transformers, model.base.config, *pair)
    solved = f"and what fits is solved by formula; allowed: implementation: {OURS}"
    return f"{quantity}: {why}, {solved}" if why else None


def fit(
    model: ChosenModel,
    chosen: ChosenDevice,
    settings: Settings,
    training: bool,
    predicted: Predictions | None = None,
) -> Fit:
    """Solve for the largest batch and length; several devices share the model as `sharing` says.

    Training on several devices is predicted in all other layouts too. `predicted` is what is known
    of the same run already: of a class without a formula traces say whether the run and others fit.
    """
    fields = fields_of(settings)
    device = chosen.accelerator_with(model, fields)
    fitting = _Fitting(model, device, chosen.margins_on(device), fields, chosen.devices, training)
    if why := fitting.not_solved(chosen.devices):
        return fitting.by_trace(why, predicted)
    return fitting.by_formula()


@dataclass(frozen=True)
class _Fitting:
    """A model on devices of one kind, for training or inference.

    `settings` are those that a user chose, `chosen` with what torch takes on the device.
    """

    model: ChosenModel
    device: Accelerator
    margins: Margins
    settings: dict[str, Any]
    devices: int
    training: bool

    @property
    def purpose(self) -> Purpose:
        return "training" if self.training else "inference"

    @property
    def quantity(self) -> str:
        return f"peak_{self.purpose}_bytes"

    @cached_property
    def chosen(self) -> dict[str, Any]:
        return settings_on(self.device, self.model, self.settings, self.training)

    def not_solved(self, devices: int) -> str | None:
        """Return why no formula says what a run on some devices needs; None if one does."""
        pair = run_of(self.model, self._sharing(devices) | self.chosen)
        return _not_solved(self.model, self.quantity, pair, devices)

    def by_trace(self, why: str, predicted: Predictions | None) -> Fit:
        """Return what traces of the class say, as no formula does. Raises InputError with `why`."""
        if predicted is None and self.devices == 1:
            predicted = predictions(self.model, [self.quantity], self.chosen)
        peaks = self._of_class(predicted) if predicted and self.devices == 1 else None
        if predicted is None or peaks is None:
            lost = predicted.missing.get(self.quantity) if predicted else None
            reason = f"{self.quantity}: {lost}" if lost else why + self._fewer_devices(why)
            raise InputError([f"{self.model.name}: {reason}{self._even_share()}"])
        rooms = self.device.bytes, self.margins.room(self.device.bytes)
        batches = self._traced_batches({predicted.run.batch: peaks}, rooms)
        return Fit(
            self.model.label, self.purpose, predicted.run, self.model.base.family, self.device, 1,
            max(peaks.values()),
            batches[0], {}, {}, batches[1], {}, self.margins, {}, why=f"{self.model.name}: {why}",
        )  # fmt: skip

    def _of_class(self, predicted: Predictions) -> Peaks | None:
        """Return the peaks of a class that leads the answer about a run; None without one."""
        if predicted.run.implementation != TRANSFORMERS:
            return None
        of_class = predicted.breakdowns.get(self.quantity)
        return {phase.name: phase.value for phase in of_class.components} if of_class else None

    def _traced_batches(
        self, peaks: dict[int, Peaks], rooms: Sequence[int]
    ) -> list[dict[str, Solution]]:
        """Return the largest batch for each room, of a class of which traces say what it needs.

        `peaks` are by batch. Nothing for all rooms if traces do not say it for one.
        """
        from modelbudget.api.traced_batch import largest_batch

        def trace(batch: int) -> Peaks | None:
            try:
                fields = {**self.chosen, "batch": batch}
                return self._of_class(predictions(self.model, [self.quantity], fields))
            except InputError:  # more than a batch may be
                return None

        batches = [largest_batch(peaks, trace, room) for room in rooms]
        return [{"batch": batch} if batch and None not in batches else {} for batch in batches]

    def _fewer_devices(self, why: str) -> str:
        """Return the end of a refusal: on how many fewer devices a formula covers the run."""
        fewer = [1] * (self.devices > 1) if self.training else range(self.devices - 1, 0, -1)
        known = next((n for n in fewer if not self.not_solved(n)), None)
        return f"; {'or' if 'allowed: ' in why else 'allowed:'} `devices={known}`" if known else ""

    def _even_share(self) -> str:
        """Return the end of a refusal: what several devices hold at least, if they divide it."""
        held = [*HELD][: None if self.training else 1] if self.devices > 1 else []
        totals = predictions(self.model, held, self.chosen).totals() if held else {}
        if not totals or totals.keys() != {*held}:
            return ""
        total = sum(totals.values())
        share, room = si_bytes(ceil_div(total, self.devices)), si_bytes(self.device.bytes)
        names = ", ".join(HELD[name] for name in held)
        return f"; {names}: {si_bytes(total)}, evenly on {self.devices} devices {share} of {room}"

    def by_formula(self) -> Fit:
        """Return what formulas say of our modules, and of the class where they were compared."""
        from modelbudget.predict.largest_that_fits import at, at_default, needed, solved

        model, device, margins = self.model, self.device, self.margins
        by = self._sharing(self.devices)
        set_by_user = {**model.chosen, **self.settings}
        at_value = partial(at_default, device=where(device, self.training))
        if KERNEL in set_by_user:
            at_value = at
        run = run_of(model, by | self.chosen)[1]
        chosen = {name: getattr(run, name) for name in DECIDED} | self.chosen
        shared = None
        if self.training and self.devices > 1:
            from modelbudget.api.layouts_that_fit import layouts  # imports Polars

            # Another layout may have another default of `foreach`.
            of_all = {n: value for n, value in chosen.items() if n != "foreach" or n in self.chosen}
            shared = layouts(model, device, of_all, self.devices, margins)
        pair = model.with_run(by | chosen)
        largest = partial(solved, pair, self.purpose, at=at_value)
        as_built = self._as_class(pair)
        n_bytes = needed(pair, self.purpose)
        assert n_bytes is not None  # `not_solved` has checked that
        leads_class = leads(model, set_by_user)
        of_class = needed(as_built, self.purpose) if leads_class and as_built else None
        room = margins.room(device.bytes)
        growing = margins.with_expandable_segments().room(device.bytes)
        has_segments = self.training and device.platform == "cuda"
        helpful, together = (), None
        if max(n_bytes, of_class or 0) > room:
            helpful, together = self._changes(room, of_class is not None)
        return Fit(
            model.label,
            self.purpose,
            pair[1],
            model.base.family,
            device,
            self.devices,
            n_bytes,
            largest(device.bytes),
            solved(as_built, self.purpose, device.bytes) if as_built else {},
            solved(as_built, self.purpose, room) if as_built and of_class is not None else {},
            largest(room),
            largest(growing) if has_segments else {},
            margins,
            {field: (by | chosen)[field] for field in by},
            shared,
            changes=tuple(helpful),
            together=together,
        )

    def _sharing(self, devices: int) -> dict[str, int]:
        return sharing(devices, self.training, {**self.model.chosen, **self.settings})

    def _as_class(self, pair: Pair) -> Pair | None:
        """Return a run with the settings of the model's class, if it was compared with them."""
        from modelbudget.predict.largest_that_fits import as_class

        return as_class(pair, self.model.base.transformers, self.purpose, self.model.base.config)

    def _changes(
        self, room: int, is_of_class: bool
    ) -> tuple[Sequence[MemoryChange], MemoryChange | None]:
        """Return what needs less, each change alone, and several together.

        `is_of_class`: the class leads the answer; of runs that are never traced ours does.
        """
        from modelbudget.api.changes import StepOfModel, changes

        def pair_with(fields: Mapping[str, Any]) -> Pair:
            """Return what answers with these fields. Raises InputError if nothing does."""
            chosen = settings_on(self.device, self.model, dict(fields), self.training)
            pair = self.model.with_run(chosen)
            run = pair[1]
            why = None
            if run.implementation != OURS:
                why = _not_solved(self.model, self.quantity, pair, self.devices)
            as_built = self._as_class(pair) if is_of_class else None
            of_class = self.model.base.transformers or ""
            if is_of_class and as_built is None and not why_not_traced(of_class, run):
                why = why or f"{self.model.name}: the class has no such run"
            if why:
                raise InputError([why])
            return as_built or pair

        step = StepOfModel(pair_with, self.purpose)
        return changes(
            self.model, step, self._sharing(self.devices) | self.settings, self.device, room
        )
