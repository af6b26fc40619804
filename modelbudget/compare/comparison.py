"""Comparison of prediction and measurement, component by component."""

from collections.abc import Sequence
from types import SimpleNamespace

import polars as pl

from modelbudget.architecture.counting_conventions import BY_NAME, FLOPS
from modelbudget.architecture.evaluators.polars_columns import Column, series
from modelbudget.architecture.terms import Term
from modelbudget.compare.class_verdict import judged, with_classes
from modelbudget.compare.uncompared import hidden, without_empty
from modelbudget.measurement.measured import NO_FAILURES, NO_ROOM
from modelbudget.measurement.measured_table import SIMULATED
from modelbudget.sweeps.quantity_names import OF_CONVENTION

MODEL = ["architecture", "run"]
"""The keys of a model in its run."""
KEYS = [*MODEL, "component", "quantity"]
TOLERANCE = {"resident_bytes": 0.01, "peak_requested_bytes": 0.001}
"""Largest relative difference that agrees. The operating system counts pages, and an allocator
counts a few bytes in addition to the tensors. All other quantities must be equal.
"""
FORMULA = "formula"
"""Source of a prediction by formula. It is compared with the measurement; a simulated one is shown
for information, since a simulated allocator has no workspaces of kernels.
"""
NOT_JUDGED = "resident_peak_bytes"
"""Quantity shown for information: its formula covers the tensors of a process only."""
OF_FAILURE: dict[str, type[pl.DataType]] = dict.fromkeys(
    ("architecture", "run", "quantity", "failure"), pl.String
)


def compare(
    points: pl.DataFrame,
    predicted: pl.DataFrame,
    measured: pl.DataFrame,
    axes: list[str],
    failures: Sequence[dict[str, str]] = (),
    classes: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return one row for each point × component × quantity that is predicted or measured.

    `predicted` has predictions by formula. `measured` has measurements, and predictions from a
    trace with the method `simulated`. `failures` lists what could not be measured: architecture,
    run, quantity and, as `failure`, the reason. `classes` has the values of `transformers` classes.

    Columns: point, label, the swept fields, component, quantity, each, instances, predicted,
    measured, difference (measured − predicted; a missing side counts as 0), percent (of
    predicted), agrees, method, shared_with, prediction, failure, not_compared (why nothing of a
    quantity is shown under the name of its class); and those of `with_classes`.

    `prediction` is `formula`, `simulated`, or null if there is none: then prediction, difference
    and agreement are null. With a `failure`, measurement, difference and agreement are. A component
    that only one side has does not agree. Agreement is null for simulated predictions and for
    `NOT_JUDGED`. `method` is the device of the model's measurements, or else `simulated`.
    """
    of = [*MODEL, "quantity"]
    is_simulated = pl.col("method") == SIMULATED
    method = measured.sort(is_simulated).group_by(MODEL).agg(pl.first("method"))
    without = predicted.filter(pl.col("component").is_null()).select(*of, formula=False)
    simulated = measured.filter(is_simulated)
    simulated = simulated.select(*KEYS, predicted="value", prediction=pl.lit(SIMULATED))
    predicted = pl.concat([predicted.drop_nulls("component"), simulated], how="diagonal")
    quantities = predicted["quantity"].to_list()
    measured = with_conventions(points, measured.filter(~is_simulated), quantities)
    measured = measured.rename({"value": "measured"}).drop("method")
    both = predicted.join(measured, on=KEYS, how="full", coalesce=True)
    missing_on_one_side = pl.col("predicted").is_null() ^ pl.col("measured").is_null()
    difference = pl.col("measured").fill_null(0) - pl.col("predicted").fill_null(0)
    # A tensor owned by another component is measured as 0, and formulas omit zeros.
    owned_elsewhere = pl.col("predicted").is_null() & (pl.col("measured") == 0)
    both = both.with_columns(
        pl.when(owned_elsewhere).then(0).otherwise(pl.col("predicted")).alias("predicted"),
        difference=difference,
        agrees=(difference.abs() <= _allowed()) & (~missing_on_one_side | owned_elsewhere),
    )
    share = pl.col("difference") / pl.col("predicted")
    # A model with points in two shards may have failed in both or in only one.
    failed = pl.DataFrame(failures, OF_FAILURE, orient="row").unique(of, keep="first")
    failed = failed.join(measured, on=of, how="anti")
    both = (
        both.join(failed, on=of, how="full", coalesce=True)
        .join(without, on=of, how="left")
        .with_columns(
            pl.coalesce("prediction", pl.when(pl.col("formula").is_null()).then(pl.lit(FORMULA)))
        )
        .with_columns(pl.when(has_prediction()).then("predicted"))
        .with_columns(
            pl.when(_has_both_sides()).then("difference"), pl.when(is_compared()).then("agrees")
        )
        .with_columns(percent=pl.when(pl.col("predicted") > 0).then(100 * share))
        .join(method, on=MODEL, how="left")
    )
    table = (
        points.select("point", "label", "architecture", "run", *axes)
        .join(both, on=["architecture", "run"], how="left")
        .drop("architecture", "run")
        .select(
            "point", "label", *axes, "component", "quantity", "each", "instances",
            "predicted", "measured", "difference", "percent", "agrees", "method", "shared_with",
            "prediction", "failure",
        )
    )  # fmt: skip
    table = without_empty(with_classes(hidden(table, points), points, classes))
    return table.sort("point", "component", "quantity")


def _allowed() -> pl.Expr:
    """Return the largest difference that agrees."""
    share = pl.col("quantity").replace_strict(TOLERANCE, default=0.0, return_dtype=pl.Float64)
    return share * pl.col("predicted").fill_null(0)


def is_near() -> pl.Expr:
    """Whether a row agrees without being equal."""
    return pl.col("agrees") & (pl.col("difference") != 0)


def is_failed() -> pl.Expr:
    """Whether the measurement of a row failed: not for lack of memory, nor since it is refused."""
    known = (pl.col("failure").str.starts_with(prefix) for prefix in NO_FAILURES)
    return pl.col("failure").is_not_null() & ~pl.any_horizontal(*known)


def is_roomless() -> pl.Expr:
    """Whether a row was not measured because there was too little memory."""
    return has_prediction() & pl.col("failure").str.starts_with(NO_ROOM).fill_null(False)


def has_prediction() -> pl.Expr:
    """Whether a row's quantity is predicted, by formula or by simulation."""
    return pl.col("prediction").is_not_null()


def has_formula() -> pl.Expr:
    """Whether a row's quantity is predicted by formula."""
    return (pl.col("prediction") == FORMULA).fill_null(False)


def value() -> pl.Expr:
    """Return the measured value of a row, or the simulated one if it was not measured."""
    simulated = pl.when(pl.col("prediction") == SIMULATED).then("predicted")
    return pl.coalesce("measured", simulated)


def is_compared() -> pl.Expr:
    """Whether a row has a prediction and a measurement that must agree."""
    is_judged = (pl.col("quantity") != NOT_JUDGED) & ~_is_estimate()
    return has_formula() & pl.col("failure").is_null() & is_judged


def _is_estimate() -> pl.Expr:
    """Whether a row is of a convention that no counted component enters."""
    return pl.col("quantity").is_in(OF_CONVENTION) & pl.col("measured").is_null()


def _has_both_sides() -> pl.Expr:
    """Whether a row has a difference; a formula without a measurement differs by all of it."""
    is_alone = (~has_formula() & pl.col("measured").is_null()) | _is_estimate()
    return has_prediction() & pl.col("failure").is_null() & ~is_alone


def verdict(comparison: pl.DataFrame) -> dict[str, int]:
    """Count the points, the comparisons, and those that agree, are near or failed.

    `compared` and `agreed` are of formulas and our modules; `of_class` counts the values of
    `transformers` classes that must agree, and `of_class_agreed` those that do.
    """
    compared, of_class = comparison.filter(is_compared()), judged(comparison)
    return {
        "points": comparison["point"].n_unique(),
        "compared": compared.height,
        "agreed": int(compared["agrees"].sum()),
        "of_class": of_class.height,
        "of_class_agreed": int(of_class["agrees"].sum()),
        "near": compared.filter(is_near()).height,
        "points_without_formula": comparison.filter(~has_prediction())["point"].n_unique(),
        "points_failed": comparison.filter(is_failed())["point"].n_unique(),
    }


def with_conventions(
    points: pl.DataFrame, measured: pl.DataFrame, quantities: Sequence[str]
) -> pl.DataFrame:
    """Add the value of each convention among `quantities`, for each model that was counted.

    There is none where no counted component enters the value, since nothing of it was measured, nor
    for FLOPs of a model with experts, which has more parameters than a token uses.
    """
    wanted = [BY_NAME[name] for name in dict.fromkeys(quantities) if name in BY_NAME]
    counted = measured.filter(quantity="parameters")
    if not wanted or counted.is_empty():
        return measured
    counts = counted.pivot("component", index=[*MODEL, "method"], values="value").fill_null(0)
    of_models = points.unique(MODEL, keep="first")
    fields = counts.select(MODEL).join(of_models, on=MODEL, how="left", maintain_order="left")
    a = SimpleNamespace(**{name: Column(fields[name]) for name in fields.columns})
    components = {
        name: Term(Column(counts[name]))
        for name in counts.columns
        if name not in (*MODEL, "method")
    }
    has_experts = fields["n_expert"].fill_null(0) > 0 if "n_expert" in fields else False
    added = []
    for convention in wanted:
        value, estimate = (
            series(convention.value(terms, a, Column(fields["length"])), counts.height)
            for terms in (components, {})
        )
        is_measured = (value != estimate) & ~(pl.lit(convention.unit == FLOPS) & has_experts)
        added.append(
            counts.select(*MODEL, "method")
            .with_columns(component=pl.lit("model"), quantity=pl.lit(convention.name), value=value)
            .filter(is_measured)
        )
    return pl.concat([measured, *added], how="diagonal")
