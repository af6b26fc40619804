"""Files that jobs read and write, and how many jobs measure a sweep."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelbudget.architecture.terms import total
from modelbudget.common.files import yaml_files
from modelbudget.common.paths import ACCELERATORS, MODELS, failed_at, files_in
from modelbudget.sweeps.expand import Expanded
from modelbudget.sweeps.sweep_file import SOLVED_TABLES

if TYPE_CHECKING:
    from modelbudget.predict.predicted_grids import Predicted

ON_PAPER = 10_000
"""Parameters of the largest model that the report counts step by step."""
MANY_TRACED = 100
"""Points of a sweep from which tracing takes longer than all that a first run does beside it."""
COUNTED = ("module_trees/modules.json", "module_trees/walkthroughs.json")
"""Files of models that are counted by hand."""
OF_ALL = (
    "assets/calculator.json", "assets/readings.json", "module_trees/trees.json",
    "training_step/step.json", "training_step/allocations.parquet",
    "training_step/shared_step.json", "training_step/shared_allocations.parquet",
    "gpt-2-ledger/ledger.parquet", "tying-surgery/surgery.parquet",
)  # fmt: skip
"""Files of no sweep, which a run of named sweeps does not make."""
OF_SWEEP = (
    "sweep.json", "points.parquet", "predicted.parquet", "measured.parquet", "failures.json",
    "reference_traces.parquet", "comparison.parquet", "comparison.csv",
)  # fmt: skip
OF_PREDICTED = ("sweep.json", "predictions", "totals.parquet", "shares.parquet")
"""Files of a sweep without measurement."""
MOST_OF_NAMES = 60
"""Characters of the names of sweeps in the name of their page."""
TABLES = ("parquet", "csv")
"""Formats of some tables."""


def page(chosen: Collection[str], every: Collection[str], on_request: Collection[str]) -> str:
    """Return what the names of the page and of its verdict have: nothing for that of all sweeps.

    Of `every` sweep, those `on_request` run only if they are named. A page of some sweeps has their
    names, or their number and a digest, so that it does not replace the page of all.
    """
    if {*chosen} in ({*every} - {*on_request}, {*every}):
        return ""
    names = "-".join(sorted(chosen))
    if len(names) > MOST_OF_NAMES:
        names = f"{len(chosen)}-sweeps-{hashlib.sha256(names.encode()).hexdigest()[:8]}"
    return f"-{names}"


def of_report(sweeps: dict[str, Expanded], is_of_all: bool) -> list[str]:
    """Return the files that belong to no sweep, of which the page is made.

    `is_of_all`: no sweeps are named.
    """
    counted = is_of_all or any(map(counted_by_hand, sweeps.values()))
    files = (*(COUNTED if counted else ()), *(OF_ALL if is_of_all else ()))
    return [f"results/{file}" for file in files]


def results(
    sweeps: dict[str, Expanded], predicted: Iterable[str], page: str, is_of_all: bool
) -> list[str]:
    """Return all files that a run writes, so that deleted ones are made again."""
    of_sweeps = [f"{name}/{file}" for name in sweeps for file in OF_SWEEP]
    of_predicted = [f"{name}/{file}" for name in predicted for file in OF_PREDICTED]
    in_formats = tables(sweeps, "zoo", "fit", "layouts", "frontier")
    return [
        f"results/report{page}.html",
        f"results/verdict{page}.json",
        "results/provenance.json",
        *of_report(sweeps, is_of_all),
        *(f"results/{file}" for file in (*of_sweeps, *of_predicted)),
        *tables(sweeps, "reference_counts", *SOLVED_TABLES),
        *(f"{path.removesuffix('.parquet')}.{suffix}" for path in in_formats for suffix in TABLES),
    ]


def of_page(sweeps: dict[str, Expanded], predicted: Iterable[str], is_of_all: bool) -> list[str]:
    """Return the files that the page is made of, all results but pictures."""
    return [
        *of_report(sweeps, is_of_all),
        *of_charts(sweeps, predicted),
        *tables(sweeps, "zoo", "fit", "layouts", "reference_counts"),
    ]


def of_charts(sweeps: dict[str, Expanded], predicted: Iterable[str]) -> list[str]:
    """Return the files that the charts of sweeps are drawn from."""
    of_sweep = ("sweep.json", "points.parquet", "comparison.parquet")
    of_predicted = ("sweep.json", "totals.parquet", "shares.parquet")
    return [
        *(f"results/{name}/{file}" for name in sweeps for file in of_sweep),
        *(f"results/{name}/{file}" for name in predicted for file in of_predicted),
        *tables(sweeps, "reference_traces", *SOLVED_TABLES),
    ]


def tables(sweeps: dict[str, Expanded], *names: str) -> list[str]:
    """Return the tables of these names that sweeps write."""
    return [f"results/{sweep}/{name}.parquet" for name in names for sweep in writing(sweeps, name)]


def writing(sweeps: dict[str, Expanded], table: str) -> list[str]:
    """Return the sweeps that write a table, by its name (`WRITTEN_BY`)."""
    return [name for name, sweep in sweeps.items() if WRITTEN_BY[table](sweep)]


def is_zoo(expanded: Expanded) -> bool:
    """Whether the sweep contains every named model."""
    return expanded.sweep.models == "all"


def has_reference(expanded: Expanded) -> bool:
    """Whether `transformers` classes are counted: in the zoo and for a config.json."""
    known = any(point.transformers for point in expanded.points)
    return known and (is_zoo(expanded) or bool(expanded.files))


WRITTEN_BY: dict[str, Callable[[Expanded], Any]] = {
    "zoo": is_zoo,
    "fit": lambda expanded: expanded.sweep.fit,
    "layouts": lambda expanded: expanded.sweep.layouts,
    **dict.fromkeys(SOLVED_TABLES, lambda expanded: expanded.sweep.solve),
    "reference_counts": has_reference,
    "reference_traces": lambda expanded: (
        expanded.sweep.measure.of_reference()
        and any(point.transformers for point in expanded.points)
    ),
}
"""Tables that only some sweeps write, by name: published and counted models, what fits, layouts of
devices, all solutions with the best ones and published models, counted and traced classes.
"""


def counted_by_hand(expanded: Expanded) -> bool:
    """Whether the points are listed one by one and are all small enough to count by hand.

    The report explains the models of such a sweep step by step.
    """
    return not expanded.sweep.grid and all(
        point.architecture.has_formula
        and total(point.architecture.parameters(point.architecture)) <= ON_PAPER
        for point in expanded.points
    )


def printed(sweeps: dict[str, Expanded]) -> dict[str, int]:
    """Return the sweeps that are counted by hand, with the seconds that a model may take."""
    return {
        name: sweep.sweep.measure.timeout_s
        for name, sweep in sweeps.items()
        if counted_by_hand(sweep)
    }


def last_failure(sweep: str) -> str | None:
    """Return when a measurement of a sweep last failed; None if none did.

    As a parameter of the rule it changes after each failure, so that the rule runs again until
    nothing fails.
    """
    path = failed_at(sweep)
    return path.read_text(encoding="utf-8") if path.exists() else None


def source_files(sweep: Expanded | Predicted) -> list[Path]:
    """Return every file that a sweep without measurements, or its solutions, depend on."""
    accelerators = [ACCELERATORS] * bool(sweep.sweep.solve)
    return [sweep.path, *model_files(), *sweep.files, *accelerators]


def model_files() -> list[Path]:
    """Return the files of all named models and the config.json files that these name."""
    return [*yaml_files(MODELS), *(path for path in files_in(MODELS) if path.suffix == ".json")]


def shards(sweeps: dict[str, Expanded], n_points: int | None) -> int:
    """Return the number of measuring jobs with at most `n_points` points each; one for None.

    Points that are not known before the run is are not counted.
    """
    points = sum(len(sweep.points) for sweep in sweeps.values())
    return math.ceil(points / n_points) or 1 if n_points else 1


def incomplete(shards: int) -> list[str]:
    """Return the files of the measuring jobs: what could not be measured or traced."""
    return [f"results/measured/{i}-of-{shards}.json" for i in range(1, shards + 1)]


def tracing_threads(sweeps: Iterable[Expanded], n_cores: int) -> int:
    """Return the threads of a job that measures or traces the models of these sweeps.

    Half of the cores, so that others run beside it (the report's calculator takes as long); all of
    them where a sweep traces many models, which takes minutes.
    """
    is_long = any(
        len(sweep.points) >= MANY_TRACED and sweep.sweep.measure.of_reference() for sweep in sweeps
    )
    return n_cores if is_long else (n_cores + 1) // 2


def gpus(sweeps: Iterable[Expanded]) -> int | None:
    """Return the number of GPUs to request: one if a sweep names the device, else None."""
    return 1 if any(sweep.sweep.measure.device == "cuda" for sweep in sweeps) else None


def one_of(names: Iterable[str]) -> str:
    """Return a wildcard pattern that matches these names only; no names match nothing."""
    return "|".join(names) or "(?!)"
