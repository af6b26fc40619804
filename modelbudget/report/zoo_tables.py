"""The section of all published models: agreement with reference counts, differences, reasons."""

import polars as pl

from modelbudget.common.number_format import count
from modelbudget.compare.zoo import AGREES, COUNTS, EXPLAINED, UNEXPLAINED, agreement

SOURCES = {
    "measured": "our module", "reference": "transformers", "exact": "public count",
    "published_value": "printed",
}  # fmt: skip
"""Each of `COUNTS` → head of its column."""
_MARKS = {AGREES: "agrees", EXPLAINED: "differs", UNEXPLAINED: "unexplained"}
_SIGNS = {"agrees": "=", "differs": "≠", "unexplained": "≠", None: "–"}


def zoo_section(zoo: pl.DataFrame | None, name: str) -> dict | None:
    """Return the context of the template, from the table of `compare/zoo.py` in folder `name`."""
    if zoo is None:
        return None
    zoo = zoo.with_columns(agreement(name).alias(f"{name}_status") for name in COUNTS)
    as_predicted = (zoo["measured"] == zoo["predicted"]).fill_null(False).all()
    columns = [name for name in COUNTS if not (as_predicted and name == "measured")]
    status = zoo["status"].to_list()
    return {
        "files": f"{name}/zoo",
        "models": zoo.height,
        "answer": f"{count(status.count(AGREES))} of {count(zoo.height)} models agree with every "
        f"reference count; {count(status.count(EXPLAINED))} differ from one for a known reason.",
        "unexplained": zoo.filter(status=UNEXPLAINED)["label"].to_list(),
        "remarks": [  # each once, with its models
            {"models": rows["label"].to_list(), "remark": remark}
            for (remark,), rows in zoo.drop_nulls("remark").group_by("remark", maintain_order=True)
        ],
        "as_predicted": as_predicted,
        "heads": [SOURCES[name] for name in columns],
        "series": [
            {"title": title, "rows": [_row(row, columns) for row in rows.iter_rows(named=True)]}
            for (title,), rows in zoo.group_by("series", maintain_order=True)
        ],
    }


def tallies(zoo: pl.DataFrame) -> dict[str, dict]:
    """Return for each of `COUNTS` the number of models with it, in total and by agreement."""
    statuses = {name: zoo.select(agreement(name)).to_series() for name in COUNTS}
    return {
        name: {"models": of.count()}
        | {mark: int((of == status).sum()) for status, mark in _MARKS.items()}
        for name, of in statuses.items()
    }


def _row(row: dict, columns: list[str]) -> dict:
    """Return a model with what its row shows in `columns`; `differences` are below its name."""
    marks = {name: _MARKS.get(row[f"{name}_status"]) for name in COUNTS}
    signs = {name: _SIGNS[mark] for name, mark in marks.items()}
    if marks["published_value"] == "agrees" and row["published_value_difference"]:
        signs["published_value"] = "≈"  # it agrees because of its rounding
    of_class = SOURCES | {"reference": row["class"]}
    return row | {
        "mark": _MARKS[row["status"]],
        "cells": [
            {"mark": marks[name], "sign": signs[name], "title": _title(row, name)}
            for name in columns
        ],
        "differences": [
            {
                "source": of_class[name],
                "number": row[f"{name}_difference"],
                "reason": row[f"{name}_reason"],
                "unexplained": marks[name] == "unexplained",
            }
            for name in COUNTS
            if row[f"{name}_reason"]
        ],
    }


def _title(row: dict, name: str) -> str | None:
    """Return the number, unless it is the prediction or printed in the cell, and its source."""
    source = {"reference": row["class"], "exact": row["exact_source"],
              "published_value": row["published_source"]}.get(name)  # fmt: skip
    if row[name] is None:
        return None
    has_number = row[name] in (row["predicted"], row["published_value"])
    number = None if has_number else count(row[name])
    return ": ".join(filter(None, (number, source))) or None
