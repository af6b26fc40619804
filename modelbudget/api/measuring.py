"""Measurements: a model's real modules held against its formula, and any torch module."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import polars as pl
from pydantic import ValidationError

from modelbudget.api.breakdown import Breakdown, of_values
from modelbudget.api.frames import Frames, html_table
from modelbudget.api.lines_of_run import line_of_settings
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import TRANSFORMERS
from modelbudget.common.errors import InputError, needed
from modelbudget.common.validation_messages import describe, show
from modelbudget.compare.class_verdict import judged, values_of_classes
from modelbudget.compare.comparison import compare, is_failed, verdict
from modelbudget.compare.uncompared import quantities_by_reason
from modelbudget.measurement.measured import Measured as OfModule
from modelbudget.measurement.measured_table import failures, measured_table
from modelbudget.measurement.reference.cached_classes import count_all, traces_of
from modelbudget.predict.predict import predict
from modelbudget.sweeps.check_quantities import undefined
from modelbudget.sweeps.class_config import classes_of
from modelbudget.sweeps.point import Point
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.quantity_names import OF_PARAMETERS
from modelbudget.sweeps.sweep_file import Measure

if TYPE_CHECKING:
    from torch import nn

    from modelbudget.api.chosen_model import ChosenModel, Settings


@dataclass(frozen=True)
class Comparison(Frames):
    """Prediction and measurement of one model by component.

    `table` has the columns of a sweep's comparison (docs/results.md). `of_class` has the count of
    the model's class in `transformers`, or the `refusal`; None if it has none or parameters were
    not counted.
    """

    model: str
    run: RunConfig
    family: type[Architecture]
    table: pl.DataFrame
    of_class: pl.DataFrame | None

    @property
    def settings(self) -> str:
        """The run settings as text; empty if only the module's tensors were counted."""
        counted = set(self.table["quantity"]) <= OF_PARAMETERS and not self.has_formula
        return "" if counted else line_of_settings(self.run, self.family)

    @property
    def predicted(self) -> int:
        """Predicted parameters."""
        return int(self._parameters()["predicted"].sum())

    @property
    def differences(self) -> pl.DataFrame:
        """The rows where formula and measurement differ."""
        return self.table.filter(~pl.col("agrees"))

    @property
    def failed(self) -> list[str]:
        """Reasons of what could not be measured."""
        return self.table.filter(is_failed())["failure"].unique().to_list()

    def by_reason(self, column: str) -> dict[str, list[str]]:
        """Return quantities by the reason in a column.

        `failure`: why they were not measured (failures, too little memory, undefined quantities);
        `not_compared`: why they are not shown under the name of the class.
        """
        return quantities_by_reason(self.table, column)

    @property
    def class_values(self) -> pl.DataFrame:
        """The values that the class in `transformers` must have; see `compare.classes.judged`."""
        return judged(self.table)

    @property
    def class_differs(self) -> bool:
        """Whether a value that the class in `transformers` must have is another there."""
        return not self.class_values["agrees"].all()

    @property
    def has_formula(self) -> bool:
        """Whether the parameters have a prediction to compare with."""
        return self._parameters()["predicted"].is_not_null().all()

    @property
    def agrees(self) -> bool | None:
        """Whether all values compared are equal, and nothing failed; None if nothing was compared.

        Compared are measurements with predictions, and values of the class in `transformers`.
        """
        if not self.differences.is_empty() or self.failed or self.class_differs:
            return False
        verdict = self.verdict()
        return True if verdict["compared"] or verdict["of_class"] else None

    def verdict(self) -> dict[str, int]:
        """Count comparisons and those that agree; see `compare.comparison.verdict`."""
        return verdict(self.table)

    def line_of_verdict(self) -> str:
        """Return how many comparisons agree, as text."""
        verdict = self.verdict()
        if not verdict["compared"]:
            return "nothing was compared"
        return f"{verdict['agreed']} of {verdict['compared']} comparisons agree"

    def _parameters(self) -> pl.DataFrame:
        return self.table.filter(pl.col("quantity") == "parameters")

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table."""
        return self.table.to_dicts()

    def to_polars(self) -> pl.DataFrame:
        """Return the table as a Polars frame."""
        return self.table

    def __str__(self) -> str:
        return f"{self.model}: {self.settings}" if self.settings else self.model

    def __repr__(self) -> str:
        return f"<Comparison of {self}; {self.line_of_verdict()}>"

    def _repr_html_(self) -> str:
        columns = ["component", "quantity", "predicted", "measured", "difference"]
        shown = self.table.sort("agrees", nulls_last=True).select(columns)
        return html_table(f"{self}; {self.line_of_verdict()}", shown.to_dicts())


def compare_model(
    model: ChosenModel, settings: Settings, quantities: Sequence[str], device: str = "meta"
) -> Comparison:
    """Instantiate, count and trace a model's module and hold it against the formula.

    Its class in `transformers` is counted, and traced if `implementation` is transformers. Raises
    InputError if torch is not installed or the run is not allowed.
    """
    measure = _checked(quantities, device)
    quantities = measure.quantities
    pair = architecture, run = model.with_run(settings)
    if mistake := undefined(quantities, architecture, run):
        raise InputError([f"{model.name}: {mistake}"])
    results = measure_models([pair], quantities, device=device)
    about = "000001", model.label, model.name
    points = points_table([Point(*about, *pair, model.base.transformers, model.base.config)])
    measured = measured_table(results, quantities)
    counts, values = _of_class(points, measure)
    predicted = predict(points, quantities)
    table = compare(points, predicted, measured, [], failures(results), values)
    return Comparison(model.label, run, type(architecture), table, counts)


def measure_models(
    pairs: Sequence[tuple[Architecture, RunConfig]],
    quantities: Sequence[str],
    n_workers: int = 1,
    device: str = "meta",
) -> list[OfModule]:
    """Measure the modules of several models; failures are in the results.

    Raises InputError if torch is not installed, or finds no such device.
    """
    measure = _checked(quantities, device)
    needed("measuring", "measure", "torch")
    import torch

    from modelbudget.measurement.process.measure_in_processes import measure_all

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(["device = 'cuda': torch finds no CUDA device; allowed: auto, meta, cpu"])
    return measure_all(list(pairs), measure, n_workers)


def _checked(quantities: Sequence[str], device: str) -> Measure:
    """Return what to measure. Raises InputError if a name is unknown."""
    try:
        return Measure.model_validate({"quantities": list(quantities), "device": device})
    except ValidationError as error:
        raise InputError(describe(error)) from None


@dataclass(frozen=True)
class Measured(Frames):
    """What a torch module was measured to have, by component."""

    parameters: Breakdown
    parameter_bytes: Breakdown
    flops_forward: Breakdown | None
    activation_bytes: Breakdown | None
    peak_bytes: int | None
    """Most bytes of live tensors in the forward pass, with parameters and buffers."""
    unsupported_ops: dict[str, int]

    def breakdowns(self) -> list[Breakdown]:
        """Return what was measured by component."""
        every = (self.parameters, self.parameter_bytes, self.flops_forward, self.activation_bytes)
        return [breakdown for breakdown in every if breakdown is not None]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each component × quantity."""
        return [row for breakdown in self.breakdowns() for row in breakdown.rows()]

    def __repr__(self) -> str:
        return f"<Measured {'; '.join(map(str, self.breakdowns()))}>"

    def _repr_html_(self) -> str:
        return "".join(breakdown._repr_html_() for breakdown in self.breakdowns())


def measure(module: nn.Module, example_inputs: Any = None) -> Measured:
    """Count any torch module, and trace one forward pass with `example_inputs`.

    `example_inputs` is a tensor, a tuple of positional or a dict of named arguments, on the
    module's device; without it the module is only counted. On `meta`, which needs no memory,
    attention, norms and dropout are those of a GPU. Activations are the bytes that autograd saves.
    Raises InputError, from the error of the module if it has one.
    """
    needed("measuring", "measure", "torch")
    from torch import nn

    from modelbudget.measurement.count import by_quantity, count
    from modelbudget.measurement.trace.backend import of_module
    from modelbudget.measurement.trace.module_trace import Trace

    if not isinstance(module, nn.Module):
        raise InputError([f"measure(): module = {show(module)}: allowed: a torch.nn.Module"])

    name = type(module).__name__
    device = next((parameter.device.type for parameter in module.parameters()), "no device")

    def of(quantity: str, values) -> Breakdown:
        return of_values(name, quantity, f"measured on {device}", values)

    counted = by_quantity(count(module), ("parameters", "parameter_bytes"))
    parameters, n_bytes = (of(quantity, values) for quantity, values in counted.items())
    if example_inputs is None:
        return Measured(parameters, n_bytes, None, None, None, {})
    named = example_inputs if isinstance(example_inputs, dict) else {}
    several = isinstance(example_inputs, tuple | list | dict)
    positional = () if named else example_inputs if several else (example_inputs,)
    trace = Trace(module)
    on_gpu = of_module(module) if device == "meta" else nullcontext()
    with on_gpu, trace.watching("forward"):
        try:
            out = module(*positional, **named)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise InputError([f"measure(): {name} with these example_inputs: {why}"]) from error
        saved = trace.saved()
        del out
    return Measured(
        parameters,
        n_bytes,
        of("flops_forward", trace.flops["forward"]),
        of("activation_bytes", saved),
        trace.peak,
        dict(trace.uncounted),
    )


def _of_class(
    points: pl.DataFrame, settings: Measure
) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    """Return the count of the class of the only point, and its values as a table of traces.

    It is traced if the run's implementation is its own. None without a class, or without values.
    """
    classes = classes_of(points)
    is_counted = bool(classes) and "parameters" in settings.quantities
    is_own = any(of.run.implementation == TRANSFORMERS for of in classes)
    is_traced = is_own and bool(settings.of_reference())
    if is_counted or is_traced:
        from modelbudget.huggingface.construct import import_class

        import_class(classes[0].class_name)  # before processes are forked that count and trace it
    with TemporaryDirectory() as folder:
        counts = count_all(classes, 1, Path(folder))[0] if is_counted else None
        traces = traces_of(classes, settings, {}, 1, Path(folder)).table if is_traced else None
    return counts, values_of_classes(traces, counts)
