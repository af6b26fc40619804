"""Results as the pipeline leaves them, for tests of the page."""

from pathlib import Path

import polars as pl

from modelbudget.compare.class_verdict import values_of_classes
from modelbudget.compare.comparison import compare
from modelbudget.compare.zoo import zoo
from modelbudget.predict.predict import predict
from modelbudget.report.charts.chart_tables import SweepTables
from modelbudget.report.charts.component_charts import charts
from modelbudget.report.charts.sweep_charts import charts_of
from modelbudget.report.page_results import SweepResult
from modelbudget.sweeps.class_config import FIELDS
from modelbudget.sweeps.expand import Expanded, expand
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.quantity_names import OF_CONVENTION
from modelbudget.sweeps.sweep_json import summary, swept_fields
from modelbudget.workflow.targets import is_zoo


def charts_of_sweep(*tables, **others) -> dict:
    """The charts of a sweep's axes, comparison and devices, by name."""
    return charts_of(SweepTables(*tables, **others))


def compared(path: Path, catalogue) -> tuple[Expanded, pl.DataFrame, pl.DataFrame]:
    """A sweep, its points and their comparison, with the formulas' numbers for torch's."""
    expanded = expand(path, catalogue)
    points = points_table(expanded.points)
    measure = expanded.sweep.measure
    predicted = predict(points, measure.quantities)
    counted = predicted.filter(~pl.col("quantity").is_in(OF_CONVENTION))
    measured = counted.select(
        "architecture", "run", "component", "quantity", value="predicted",
        method=pl.lit("cpu"), shared_with=pl.lit(None, pl.String),
    )  # fmt: skip
    values = values_of_classes(None, classes(points)) if is_zoo(expanded) else None
    comparison = compare(points, predicted, measured, swept_fields(expanded), classes=values)
    return expanded, points, comparison


def result(path: Path, catalogue) -> SweepResult:
    """A sweep's results as the pipeline leaves them."""
    expanded, points, comparison = compared(path, catalogue)
    about = summary(expanded)
    found, models = charts(about["axes"], comparison), None
    if is_zoo(expanded):
        models = zoo(catalogue, points, comparison, classes(points))
    specs = {name: chart.to_dict() for name, chart in found.items()}
    return SweepResult(about, points, comparison, specs.copy, models)


CLASSES = {
    "deepseek-v3": ("DeepseekV3ForCausalLM", 671_026_404_352),
    "t5-v1-1-small": ("T5ForConditionalGeneration", 60_511_616),
    "gpt-2-124m": ("GPT2LMHeadModel", 124_439_808),
}
"""What three classes of transformers hold, as `tests/models/test_zoo.py` counts them."""


def classes(points: pl.DataFrame) -> pl.DataFrame:
    known = pl.DataFrame(
        [{"base": model, "class": name, "parameters": n} for model, (name, n) in CLASSES.items()]
    )
    return points.join(known, on="base").select(
        "point", "class", "parameters", built_from=pl.lit(FIELDS), buffers=pl.lit(0, pl.Int64),
        refusal=pl.lit(None, pl.String),
    )  # fmt: skip


LEDGER = pl.from_dicts(
    [
        {"model": "GPT-2 124M", "module": "transformer.wte", "kind": "Embedding", "instances": 1,
         "each_expected": 38597376, "each_true": 38597376, "expected": 38597376,
         "true": 38597376, "shared_with": None, "formula": "d_model*n_vocab",
         "mathml": "<math><mi>wte</mi></math>", "agrees": True, "device": "cpu"},
        {"model": "GPT-2 124M", "module": "lm_head", "kind": "Linear", "instances": 1,
         "each_expected": 0, "each_true": 0, "expected": 0, "true": 0,
         "shared_with": "transformer.wte", "formula": "0", "mathml": "", "agrees": True,
         "device": "cpu"},
    ]
)  # fmt: skip


SURGERY = pl.from_dicts(
    [
        {"device": device, "step": 2, "operation": "head replaced", "expected": 163037184,
         "parameters": 163037184, "embedding_storage": "A", "head_storage": "B", "tied": False,
         "data_ptr_says_tied": device == "meta", "agrees": True}
        for device in ("cpu", "meta")
    ]
)  # fmt: skip


PROVENANCE: dict = {
    "versions": {"modelbudget": "0.1.0", "torch": "2.13.0"}, "commit": "0123abc",
    "device": "a computer", "time": "2001-01-01T00:00:00+00:00",
}  # fmt: skip


PARTS = {
    "gpt-2-ledger/ledger.parquet": LEDGER,
    "tying-surgery/surgery.parquet": SURGERY,
    "provenance.json": PROVENANCE,
}
"""What belongs to no sweep, by its file."""
