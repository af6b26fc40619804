"""Compare the results of two commits: every row of every Parquet file.

    python scripts/dev/compare_results.py OLD NEW

OLD and NEW are commits, or folders of results. A commit is run in a worktree of its own, which
takes minutes. `scripts/dev/renamed.yaml` has the names that changed in between, and the predictions
that were removed on purpose. Prints what differs, and exits with 1 if anything does.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl
import yaml

ROOT = Path(__file__).parents[2]
RENAMED = ROOT / "scripts" / "dev" / "renamed.yaml"
CACHES = ("measurements", "reference_counts", "reference_traces", "witnesses")
"""Folders whose files are named by digests of the code, `witnesses` in old commits: no results."""
KEYS = ("point", "architecture", "run")
"""Columns that identify points, models and run settings."""
MEASURED = ("measured", "value", "difference", "percent", "agrees", "method", "failure")
N_SHOWN = 5


def main(old: str, new: str) -> int:
    """Return the number of files that differ."""
    names = yaml.safe_load(RENAMED.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        before, after = (results(source, Path(folder)) for source in (old, new))
        found = {path: after / path for path in tables(after)}
        moved = names["files"]
        expected = {
            path.with_name(moved.get(path.name, path.name)): before / path
            for path in tables(before)
        }
        differences = [
            f"{path}: only in {old if path in expected else new}"
            for path in sorted(found.keys() ^ expected.keys())
        ]
        for path in sorted(found.keys() & expected.keys()):
            was, is_now = pl.read_parquet(expected[path]), pl.read_parquet(found[path])
            was = renamed(was, names, is_now)
            was, is_now = with_labels(was, is_now, (before / path.parent, after / path.parent))
            differences += [f"{path}: {line}" for line in compare(was, is_now, names)]
    print(*differences, f"{len(found)} files, {len(differences)} differences", sep="\n")
    return len(differences)


def results(source: str, folder: Path) -> Path:
    """Return the folder of results of a commit, which is run first, or the folder itself."""
    if Path(source).is_dir():
        return Path(source)
    tree = folder / source.replace("/", "-")
    subprocess.run(["git", "worktree", "add", "--detach", tree, source], cwd=ROOT, check=True)
    try:
        snakemake = [sys.executable, "-m", "snakemake", "--cores", "all"]
        subprocess.run(snakemake, cwd=tree, check=True)
        return (tree / "results").rename(folder / f"results-of-{tree.name}")
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def tables(folder: Path) -> list[Path]:
    """Return every Parquet file of results, relative to their folder."""
    found = (path.relative_to(folder) for path in folder.rglob("*.parquet"))
    return [path for path in found if path.parts[0] not in CACHES]


def with_labels(
    was: pl.DataFrame, is_now: pl.DataFrame, folders: tuple[Path, Path]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Replace numbers of points and digests by the label of a point that both folders have.

    An added point shifts numbers, and an added field changes digests. Points whose label is not in
    both folders, or not unique, keep their number.
    """
    paths = [folder / "points.parquet" for folder in folders]
    if not all(path.exists() for path in paths):
        return was, is_now
    points = [pl.read_parquet(path) for path in paths]
    unique = (set(one.filter(~pl.col("label").is_duplicated())["label"]) for one in points)
    shared = pl.Series(sorted(set.intersection(*unique)), dtype=pl.String)
    named = [
        one.with_columns(
            name=pl.when(pl.col("label").is_in(shared.implode())).then("label").otherwise("point")
        )
        for one in points
    ]
    return _named(was, named[0]), _named(is_now, named[1])


def _named(table: pl.DataFrame, points: pl.DataFrame) -> pl.DataFrame:
    for column in set(KEYS) & set(table.columns):
        # Labels that both folders have come first, so that an added point changes no other name.
        is_number = pl.col("name") == pl.col("point")
        names = points.sort(is_number, "name").unique(column, keep="first", maintain_order=True)
        table = table.with_columns(pl.col(column).replace(names[column], names["name"]))
    return table


def renamed(table: pl.DataFrame, names: dict, now: pl.DataFrame) -> pl.DataFrame:
    """Give an old table the names of columns, values and parts of components that a new one has.

    Old columns with the same new name are merged. A column or a part that the new table still has
    is kept.
    """
    for new, old in names["columns"].items():
        gone = [name for name in old if name in table.columns and name not in now.columns]
        if gone and new in now.columns:
            table = table.with_columns(pl.coalesce(gone).alias(new)).drop(gone)
    for column, new in names["values"].items():
        if column in table.columns:
            table = table.with_columns(pl.col(column).cast(pl.String).replace(new))
    for column in {"component", *names["patterns"]} & {*table.columns} & {*now.columns}:
        for old, new in names["parts"].items():
            if not now[column].str.contains(rf"\b{old}\b").any():
                table = table.with_columns(pl.col(column).str.replace_all(rf"\b{old}\b", new))
    return table


def compare(was: pl.DataFrame, is_now: pl.DataFrame, names: dict) -> list[str]:
    """Return what differs between two tables. New columns do not count: a new field is not a
    different result.
    """
    lost = [name for name in was.columns if name not in is_now.columns]
    if lost:
        return [f"columns {', '.join(lost)} are missing"]
    was, is_now = (comparable(table, was.columns, names) for table in (was, is_now))
    if was.equals(is_now):
        return []
    keys = was.columns
    gone = was.join(is_now, on=keys, how="anti", nulls_equal=True)
    come = is_now.join(was, on=keys, how="anti", nulls_equal=True)
    shown = [str(row) for row in (*gone.rows()[:N_SHOWN], *come.rows()[:N_SHOWN])]
    return [f"{gone.height} rows are gone, {come.height} are new, of {was.height}", *shown]


def comparable(table: pl.DataFrame, columns: list[str], names: dict) -> pl.DataFrame:
    """Sort the rows, without readings of the operating system, removed predictions, and texts, of
    which only the presence counts.
    """
    table = table.select(columns)
    if "quantity" in columns:
        reading = pl.col("quantity").is_in(names["readings"])
        kept = [pl.when(~reading).then(name).alias(name) for name in MEASURED if name in columns]
        table = table.with_columns(kept)
        table = table.filter(~pl.col("quantity").is_in(names["removed"]))
    texts = [name for name in names["texts"] if name in columns]
    return table.with_columns(pl.col(texts).is_null()).sort(columns)


if __name__ == "__main__":
    sys.exit(bool(main(*sys.argv[1:])))
