"""The tool that compares the results of two commits."""

import subprocess
import sys
from pathlib import Path

import polars as pl
from helpers.project import ROOT

from modelbudget.common.paths import MEASUREMENTS, REFERENCE_COUNTS, REFERENCE_TRACES


def results(folder: Path, component: str = "head", **parameters: int) -> Path:
    """Results of a sweep with one point for each label, in this order."""
    points = [
        {"point": f"{i:06}", "label": label, "architecture": f"digest of {label}", "run": "r"}
        for i, label in enumerate(parameters, start=1)
    ]
    rows = [
        {"point": point["point"], "component": component, "quantity": "parameters", "measured": n}
        for point, n in zip(points, parameters.values(), strict=True)
    ]
    (folder / "zoo").mkdir(parents=True)
    pl.DataFrame(points).write_parquet(folder / "zoo" / "points.parquet")
    pl.DataFrame(rows).write_parquet(folder / "zoo" / "comparison.parquet")
    return folder


def compared(*folders: Path) -> str:
    command = [sys.executable, "scripts/dev/compare_results.py", *map(str, folders)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


def test_an_added_model_shows_as_added_rows(tmp_path):
    old = results(tmp_path / "old", gpt=1, palm=3)
    new = results(tmp_path / "new", gpt=1, llama=2, palm=3)
    text = compared(old, new)
    assert "zoo/comparison.parquet: 0 rows are gone, 1 are new, of 2" in text
    assert "zoo/points.parquet: 0 rows are gone, 1 are new, of 2" in text
    assert "2 files, 4 differences" in text


def test_a_changed_number_shows_as_a_row_gone_and_a_new_one(tmp_path):
    old = results(tmp_path / "old", gpt=1, palm=3)
    new = results(tmp_path / "new", gpt=1, palm=4)
    text = compared(old, new)
    assert "zoo/comparison.parquet: 1 rows are gone, 1 are new, of 2" in text
    assert "('palm', 'head', 'parameters', 3)" in text
    assert "points.parquet" not in text


def test_neither_caches_nor_parts_that_kept_their_name_differ(tmp_path):
    """Files of caches are named by digests of the code, which every commit changes.

    Experts were once renamed, and classes have parts of that name.
    """
    old, new = (results(tmp_path / name, "mlp.experts", gpt=1) for name in ("old", "new"))
    for cache in (MEASUREMENTS, REFERENCE_COUNTS, REFERENCE_TRACES):
        (old / cache.name).mkdir()
        pl.DataFrame({"key": ["a"]}).write_parquet(old / cache.name / "digest.parquet")
    assert compared(old, new) == "2 files, 0 differences\n"
