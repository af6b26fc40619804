"""The pipeline as a user runs it: Snakemake in a copy of the project."""

import json
import re
import subprocess

import pandas as pd
import polars as pl
import pytest
from helpers.project import ROOT, SMALL, with_sweeps

from modelbudget.common.run_metadata import measuring


@pytest.fixture(scope="module")
def project(copy_of_reported):
    """A project with one small sweep, run once."""
    return copy_of_reported("small")


def comparison(project, name: str) -> pl.DataFrame:
    return pl.read_parquet(project.folder / "results" / name / "comparison.parquet")


def test_the_results_are_tidy_and_agree(project):
    table = comparison(project, "small")
    assert table["agrees"].all()
    assert table["point"].n_unique() == 4
    assert set(table["quantity"]) == {"parameters", "parameter_bytes"}
    assert {"d_model", "tied", "predicted", "measured", "method", "difference"} <= set(
        table.columns
    )
    assert set(table["method"]) == {"cpu"}
    in_pandas = pd.read_parquet(project.folder / "results" / "small" / "comparison.parquet")
    in_csv = pd.read_csv(
        project.folder / "results" / "small" / "comparison.csv", dtype={"point": str}
    )
    assert in_pandas["measured"].tolist() == in_csv["measured"].tolist()
    summary = json.loads((project.folder / "results" / "small" / "sweep.json").read_text())
    assert summary["axes"] == {"d_model": [8, 16], "tied": [True, False]}


def test_nothing_is_left_half_written(project):
    assert not list((project.folder / "results").rglob("*.part"))


def test_jobs_are_selected_only_when_one_has_ended(make_project):
    """Snakemake's limit of jobs a second selects again every second, once for each ended job."""
    project = make_project()
    for name in ("one", "two", "three"):
        project.write_sweep(f"{name}.yaml", SMALL)
    targets = [f"results/{name}/predicted.parquet" for name in ("one", "two", "three")]
    run = project.snakemake(*targets, "--verbose")
    assert run.returncode == 0, run.stderr
    assert 0 < (run.stdout + run.stderr).count("Ready jobs: ") <= 6  # as many as jobs


def test_running_again_does_nothing(project):
    # The first brings up to date what other sweeps left, of which some are gone.
    first, again = (project.snakemake("results/small/comparison.parquet") for _ in range(2))
    assert first.returncode == again.returncode == 0
    assert "compare" not in first.stderr
    assert "Nothing to be done" in again.stdout + again.stderr


def test_a_dry_run_reads_like_a_plan_of_the_chosen_sweeps(project):
    project.write_sweep("another.yaml", SMALL)
    run = project.snakemake("-n", "--config", "sweeps=another")
    assert "another: predict and compare" in run.stdout
    assert "small: " not in run.stdout
    assert max(map(len, project.snakemake("-n").stdout.splitlines())) < 1000
    (project.folder / "configs" / "sweeps" / "another.yaml").unlink()


def test_only_what_changed_is_made_again(project):
    """A comment: nothing. Another title: nothing is measured, since all of it is in the cache.
    Another value: that sweep is measured. A new sweep: only that.
    """

    def planned() -> str:
        targets = [
            f"results/{path.stem}/comparison.parquet"
            for path in (project.folder / "configs" / "sweeps").iterdir()
        ]
        return project.snakemake("-n", *targets).stdout

    project.write_sweep("small.yaml", f"# a comment\n{SMALL}")
    assert "Nothing to be done" in planned()
    path = project.write_sweep("small.yaml", SMALL)
    path.write_text(path.read_text().replace("A test", "Another title"))
    assert project.snakemake("results/small/comparison.parquet").returncode == 0
    assert "4 measured before, 0 to measure" in project.log_of_measuring()
    made = path.read_text()
    path.write_text(made.replace("[8, 16]", "[8, 16, 24]"))
    assert "small: predict and compare" in planned()
    path.write_text(made)
    project.write_sweep("other.yaml", SMALL)
    assert "other: predict and compare" in planned()
    assert "small: " not in planned()
    (project.folder / "configs" / "sweeps" / "other.yaml").unlink()


def test_an_overlapping_sweep_measures_the_difference(project):
    project.write_sweep("overlapping.yaml", SMALL.replace("[8, 16]", "[16, 24]"))
    run = project.snakemake("results/overlapping/comparison.parquet")
    (project.folder / "configs" / "sweeps" / "overlapping.yaml").unlink()
    assert run.returncode == 0, run.stderr
    assert "2 measured before, 2 to measure" in project.log_of_measuring()
    work = measuring(project.folder / "results" / "logs", 1)
    assert work["overlapping"] == {"measured": 2, "reused": 2, "failed": 0}
    table = comparison(project, "overlapping")
    assert table["agrees"].all()
    assert table["point"].n_unique() == 4


def test_a_mistake_stops_everything_before_it_starts(project):
    before = (project.folder / "results" / "small" / "comparison.parquet").read_bytes()
    path = project.write_sweep("bad.yaml", "base: gpt-2-124m\ngrid: {n_head: [7], d_modl: [1]}\n")
    run = project.snakemake()
    path.unlink()
    assert run.returncode != 0
    assert (
        "configs/sweeps/bad.yaml: grid.d_modl: unknown field; did you mean d_model?" in run.stderr
    )
    assert "Traceback" not in run.stdout + run.stderr
    assert not (project.folder / "results" / "bad").exists()
    assert (project.folder / "results" / "small" / "comparison.parquet").read_bytes() == before


def test_a_wrong_formula_is_shown_and_does_not_stop_the_run(make_project):
    project = make_project()
    project.write_sweep("small.yaml", SMALL)
    formulas = project.folder / "modelbudget" / "components" / "embedding.py"
    right = "rows(a) + a.n_input_token, width(a))"
    assert right in formulas.read_text()
    formulas.write_text(formulas.read_text().replace(right, f"1 + {right}"))
    run = project.snakemake("results/small/comparison.parquet")
    assert run.returncode == 0, run.stderr
    wrong = comparison(project, "small").filter(~pl.col("agrees"))
    assert set(wrong["component"]) == {"embedding.token"}
    log = (project.folder / "results" / "small" / "logs" / "compare.log").read_text()
    assert log.count("ERROR") == wrong.height


def test_make_names_both_commands():
    plan = subprocess.run(
        ["make", "-n", "report", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "snakemake --cores 8" in plan.stdout
    assert "python -m modelbudget.workflow.exit_code" in plan.stdout
    assert "pytest" in plan.stdout


def test_predictions_alone_measure_nothing(reported):
    """More of them than a measured sweep may have points, each with its total."""
    results = reported.folder / "results" / "alone"
    assert {path.name for path in results.iterdir()} == {
        "logs", "predictions", "shares.parquet", "sweep.json", "totals.parquet",
    }  # fmt: skip
    rows = pl.read_parquet(results / "predictions" / "*.parquet")
    assert rows.height == 150_000
    gpt2 = rows.filter(pl.col("n_layer") == 12, pl.col("d_ff") == 3000)
    assert gpt2["parameters"].item() == 124_439_808 - 12 * 72 * (2 * 768 + 1)


def test_the_points_of_a_sweep_with_solve_are_its_frontier(make_project):
    """And a bound that no shape meets ends the job with the nearest shape."""
    project = make_project()
    path = project.write_sweep(
        "shapes.yaml",
        "base: gpt-2-124m\n"
        "grid: {n_vocab: [100, 200, 300], n_layer: [1, 2, 3], d_model: [24], n_head: [2]}\n"
        "solve: {within: {without_embeddings: [1, 16_000]}, best: {n_vocab: most, n_layer: most}}\n"
        "measure: {device: meta}",
    )
    run = project.snakemake("results/shapes/comparison.parquet", "results/shapes/charts")
    assert run.returncode == 0, run.stdout + run.stderr
    results = path.parents[2] / "results" / "shapes"
    points = pl.read_parquet(results / "points.parquet")
    assert points.select("n_vocab", "n_layer").rows() == [(300, 2)]
    assert pl.read_parquet(results / "solutions.parquet").height == 6
    table = comparison(project, "shapes")
    assert table["agrees"].all()
    assert (results / "charts" / "frontier.svg").exists()
    path.write_text(path.read_text().replace("[1, 16_000]", "[8_000, 8_001]"))
    run = project.snakemake("results/shapes/points.parquet")
    assert run.returncode
    assert "solve.within.without_embeddings: none of the 9 shapes" in run.stdout + run.stderr


def test_one_command_leaves_a_report_and_says_what_is_in_it(reported):
    assert re.search(
        r"([\d,]+) of \1 comparisons agree\nresults/report.html\n", reported.run.stdout
    )
    report = reported.folder / "results" / "report.html"
    page = report.read_text(encoding="utf-8")
    for section in ("small", "alone", "gpt-2-ledger", "tying-surgery", "provenance"):
        assert f'<section id="{section}">' in page
    assert "all 150,000 models are predicted by the formulas below" in page
    for file in re.findall(r"""href="?([^"#\s>][^"\s>]*)""", page.partition("<script")[0]):
        assert (report.parent / file).is_file(), file
    assert not list((reported.folder / "results").rglob("*.part"))


def test_snakemakes_own_report_has_captions(copy_of_reported):
    project = copy_of_reported()
    own = project.snakemake("--report", "own.html")
    assert own.returncode == 0, own.stderr
    shown = (project.folder / "own.html").read_text(encoding="utf-8")
    data = shown[shown.index('var results = {"') + len("var results = ") :]
    results, _ = json.JSONDecoder().raw_decode(data)
    captions = {
        "results/report.html": "The report in one file",
        "results/small/comparison.csv": "Sweep <tt",
    }
    for file, words in captions.items():
        assert words in results[file]["caption"]
    for category in ("Report", "Tables"):
        assert f'"{category}"' in shown


@pytest.mark.slow
def test_two_runs_from_scratch_are_the_same_to_the_byte(reported, tmp_path):
    """Except logs, records and provenance.json, which have the time. Without waiting for this,
    test_stale_results.py damages all results of a copy and compares what is made again.
    """
    again = with_sweeps(tmp_path)
    run = again.snakemake()
    assert run.returncode == 0, run.stderr
    made = [
        path.relative_to(again.folder)
        for path in (again.folder / "results").rglob("*")
        if path.is_file()
        and not {"logs", ".records"} & {*path.parts}
        and "provenance" not in path.name
    ]
    assert {"report.html", "zoo.parquet"} <= {path.name for path in made}
    for path in made:
        assert (again.folder / path).read_bytes() == (reported.folder / path).read_bytes(), path
