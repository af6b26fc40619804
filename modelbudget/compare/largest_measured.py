"""Measurement of the solutions of a sweep's `fit`: the largest that fit, and the next larger."""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from modelbudget.measurement.cached_points import measure_new
from modelbudget.predict.largest_that_fits import Cell, Model, depth, totals
from modelbudget.sweeps.quantity_names import FITS
from modelbudget.sweeps.sweep_file import Measure

MOST_LAYERS = 128
"""Layers of the deepest model that is traced: a trace takes a second for each hundred layers."""


def measure_solutions(
    cells: Iterable[Cell], settings: Measure, n_workers: int, folder: Path
) -> tuple[dict[tuple[str, Model], int], dict[tuple[str, Model], str]]:
    """Trace the model of each solution and the next larger one on meta.

    Returns bytes by purpose and model, and the reasons where there are none.
    """
    n_bytes, missing = {}, {}
    cells = list(cells)
    for purpose, needs in FITS.items():
        # A dictionary, since the same model may be too large for one device and fit another.
        wanted = dict.fromkeys(
            model
            for cell in cells
            if cell.purpose == purpose
            for model in (cell.largest, cell.beyond)
            if model
        )
        models = [model for model in wanted if depth(model) <= MOST_LAYERS]
        too_deep = f"not traced (more than {MOST_LAYERS} layers)"
        missing |= {(purpose, model): too_deep for model in wanted if depth(model) > MOST_LAYERS}
        where = settings.model_copy(update={"quantities": sorted(needs), "device": "meta"})
        # The sweep measures its own points too, with all of its quantities.
        points = {cell.point.model for cell in cells} if settings.device == "meta" else set()
        of_points = [model for model in models if model in points]
        of_others = [model for model in models if model not in points]
        reasons, of_digests = {}, {}
        for measure, group in ((settings, of_points), (where, of_others)):
            if group:
                measurements = measure_new(group, measure, n_workers, folder)
                table = measurements.table.filter(pl.col("quantity").is_in(needs))
                of_digests |= totals(table, purpose)
                reasons |= {
                    (row["architecture"], row["run"]): row["failure"]
                    for row in measurements.failures
                    if row["quantity"] in needs
                }
        for model in models:
            architecture, run = model
            digests = architecture.digest(), run.digest()
            if digests in reasons:  # the other quantities are only a part of what it needs
                missing[purpose, model] = f"not traced ({reasons[digests]})"
            else:
                n_bytes[purpose, model] = of_digests[digests]
    return n_bytes, missing
