"""The zoo on the page: counts at the top, reasons in words, a table that can be searched."""

import polars as pl
import polars.selectors as cs
import pytest

from modelbudget.catalogue.published_readings import Reading, Source
from modelbudget.compare.readings_of_gpus import Row
from modelbudget.compare.zoo import AGREES, COUNTS, EXPLAINED, UNEXPLAINED
from modelbudget.report.page_results import SweepResult
from modelbudget.report.ratios import ratios
from modelbudget.report.zoo_tables import tallies, zoo_section

SOURCES = {"class": None, "exact_source": None, "published_source": None}


def zoo(*rows: dict) -> pl.DataFrame:
    """A table of named models; fields that a row does not have agree, or are missing."""
    whole = []
    for number, row in enumerate(rows, start=1):
        size = row.get("predicted", 10**number)
        base = {
            "point": f"{number:06}", "model": f"model-{number}", "label": f"Model {number}",
            "series": "A series", "family": "decoder", "predicted": size, "measured": size,
            "reference": None, "exact": None, "published_value": None, "published": None,
            "published_checked": "read", "active": None, "active_without_input_embedding": None,
            "published_active": None, "status": AGREES, "remark": None, **SOURCES,
            **{f"{name}_reason": None for name in COUNTS},
        } | row  # fmt: skip
        differences = {
            f"{name}_difference": base[name] - size if base[name] is not None else None
            for name in COUNTS
        }
        whole.append(base | differences)
    table = pl.from_dicts(whole, infer_schema_length=None)
    numbers = [*COUNTS, "published_active", "active", "active_without_input_embedding"]
    numbers += [f"{name}_difference" for name in COUNTS]
    return table.with_columns(
        pl.col(numbers).cast(pl.Int64), (cs.by_dtype(pl.Null) - cs.by_name(numbers)).cast(pl.String)
    )


PLAIN = {"reference": 10, "published_value": 11, "published": "11", "class": "PlainForCausalLM"}
TIED = {"predicted": 500, "reference": 400, "class": "TiedForCausalLM", "status": EXPLAINED,
        "reference_reason": "the class ties the head"}  # fmt: skip
ALSO_TIED = TIED | {"predicted": 1_500, "reference": 1_200, "label": "Model 3 (also tied)"}
ODD = {
    "predicted": 2_000,
    "published_value": 2_500,
    "published": "2.5K",
    "status": UNEXPLAINED,
    "published_value_reason": "unexplained: no reason is known",
}
EXPERTS = {"predicted": 9_000, "active": 3_000, "active_without_input_embedding": 2_000,
           "published_active": 2_100}  # fmt: skip
TABLE = zoo(PLAIN, TIED, ALSO_TIED, ODD, EXPERTS)


def test_models_are_counted_by_status():
    section = zoo_section(TABLE, "zoo")
    assert section["answer"].startswith("2 of 5 models agree with every reference count; 2 differ")
    assert section["unexplained"] == ["Model 4"]


def test_each_count_has_a_tally():
    numbers = {name: tuple(of.values()) for name, of in tallies(TABLE).items()}
    assert numbers == {  # models, agree, differ, unexplained
        "measured": (5, 5, 0, 0),
        "reference": (3, 1, 2, 0),
        "exact": (0, 0, 0, 0),
        "published_value": (2, 1, 0, 1),
    }


def test_marks_of_a_row():
    (series,) = zoo_section(TABLE, "zoo")["series"]
    plain, tied, _, odd, _ = series["rows"]
    assert [cell["sign"] for cell in plain["cells"]] == ["=", "–", "≈"]  # 11 for 10
    assert plain["cells"][-1]["mark"] == "agrees"
    assert [cell["sign"] for cell in tied["cells"]] == ["≠", "–", "–"]
    assert tied["cells"][-1]["mark"] is None
    assert (odd["cells"][-1]["sign"], odd["cells"][-1]["mark"]) == ("≠", "unexplained")
    assert odd["differences"][0]["unexplained"]


@pytest.mark.parametrize("measured", [9, None])
def test_modules_have_a_column_where_one_is_not_as_predicted(measured):
    """Where all are, a sentence says so: only this sees it over a module that differs or failed."""
    wrong = {"measured": measured, "measured_reason": measured and "unexplained"}
    section = zoo_section(zoo(PLAIN, TIED | wrong), "zoo")
    assert not section["as_predicted"]
    assert section["heads"] == ["our module", "transformers", "public count", "printed"]
    plain, tied = section["series"][0]["rows"]
    assert [row["cells"][0]["sign"] for row in (plain, tied)] == ["=", "≠" if measured else "–"]
    assert zoo_section(TABLE, "zoo")["as_predicted"]


def test_printed_sizes_are_a_row_of_the_plot_of_ratios():
    """Predicted ÷ printed. Only this sees a size that is left out, or counted as close."""
    source = Source(title="GPUs", source="A paper", rule="The largest", settings={})
    reading = Reading(source="GPUs", base="gpt-2-124m", settings={}, gib=2.0)
    sweep = SweepResult({"name": "zoo"}, TABLE, TABLE, dict, zoo=TABLE)
    _, sizes = ratios([Row(source, "GPT-2", reading, 2.0, "")], [sweep])["sources"]
    assert sizes["title"].endswith("cards: 1 of 2 within their rounding")
    assert [(dot["close"], dot["title"]) for dot in sizes["dots"]] == [
        (False, "Model 4, 2.5K printed: 0.800; unexplained: no reason is known"),
        (True, "1 within their rounding: Model 1"),
    ]
