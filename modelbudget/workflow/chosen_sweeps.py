"""The sweeps of a run: their files, read and checked."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from modelbudget.catalogue.accelerators import Accelerator, accelerators, named
from modelbudget.catalogue.check_huggingface_files import check_huggingface_files
from modelbudget.catalogue.named_models import Catalogue, wrong_class
from modelbudget.common.errors import InputError, noted
from modelbudget.common.files import load_yaml, yaml_files
from modelbudget.common.paths import ACCELERATORS, MODELS, SWEEPS
from modelbudget.common.suggestions import did_you_mean, offered
from modelbudget.common.validation_messages import show
from modelbudget.huggingface import bounded_check
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.expand import Expanded, expanded
from modelbudget.sweeps.read import CheckedSweep, read
from modelbudget.workflow.preflight import out_of_reach

REPORT = Path(__file__).parents[1] / "report"
FOLDERS = {
    "assets", "gpt-2-ledger", "logs", "measured", "measurements", "module_trees",
    "provenance", "reference_counts", "reference_traces", "training_step", "tying-surgery",
}  # fmt: skip
"""Folders of results/ that do not belong to a sweep."""
PARTS_OF_SWEEP = (
    "fit", "implementations", "layouts", "models", "numbers", "shares", "total", "vocabulary",
)  # fmt: skip
"""Suffixes of the ids that the page derives from a sweep's name: `width-fit`, `width-numbers`."""


def chosen_sweeps(wanted: Any, here: bool = True) -> list:
    """Read and check the named sweeps; None: all except those with `default: false`.

    Each is `Expanded`, or `Predicted` if nothing is to be measured. With `here`, models are
    measured on this machine, and the sweeps are also checked against its devices.

    Raises InputError with the mistakes of all files together.
    """
    files = sweep_files()
    names = list(files) if wanted is None else _names(wanted, files)
    mistakes = [
        f"--config sweeps={name}: unknown sweep{did_you_mean(name, files)} "
        f"(allowed: {', '.join(files)})"
        for name in names
        if name not in files
    ]
    check_huggingface_files()  # here and not in each job
    catalogue = Catalogue(MODELS)
    check_models(catalogue)
    devices: list[Accelerator] = []
    with noted(mistakes):
        devices = accelerators(ACCELERATORS)
    sweeps = []
    for path in [files[name] for name in files if name in names]:
        with noted(mistakes):
            checked = read(path, catalogue)
            if checked.sweep.default or wanted is not None:
                sweeps.append(plan(checked, devices))
    if not sweeps and not mistakes:
        mistakes.append(f"{SWEEPS}: every sweep has default: false; name one: --config sweeps=…")
    if here:
        measured = [sweep for sweep in sweeps if isinstance(sweep, Expanded)]
        mistakes += [line for sweep in measured for line in out_of_reach(sweep)]
    bounded_check.end()
    if mistakes:
        raise InputError(mistakes)
    return sweeps


def on_request() -> list[tuple[str, str]]:
    """Return name and title of the sweeps with `default: false`."""
    contents = {name: load_yaml(path) for name, path in sweep_files().items()}
    return [
        (name, content["title"])
        for name, content in contents.items()
        if content.get("default") is False
    ]


def sweep_files() -> dict[str, Path]:
    """Return every sweep file by name. Raises InputError for names that cannot be folders."""
    files: dict[str, Path] = {}
    mistakes = []
    reserved = reserved_names()
    for path in yaml_files(SWEEPS):
        name = path.stem
        if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
            mistakes.append(
                f"{path}: the name of a sweep becomes a folder; "
                "allowed: letters, digits, hyphens and underscores"
            )
        elif name.lower() in reserved:
            mistakes.append(
                f"{path}: the report uses this name for one of its parts; "
                f"allowed: any name but {', '.join(sorted(reserved))}"
            )
        elif name.lower() in (
            known := {file_name.lower(): files[file_name] for file_name in files}
        ):
            mistakes.append(f"{path}: {known[name.lower()]} has the same name; rename one")
        else:
            files[name] = path
    mistakes += [
        f"{path}: the report uses this name for a part of {files[sweep]}; allowed: any name but "
        f"{sweep}-{part}"
        for name, path in files.items()
        for sweep, _, part in [name.rpartition("-")]
        if sweep in files and part in PARTS_OF_SWEEP
    ]
    if not files and not mistakes:
        mistakes.append(f"{SWEEPS}: contains no sweep; add a YAML file")
    if mistakes:
        raise InputError(mistakes)
    return files


def reserved_names() -> set[str]:
    """Return names that no sweep may have: folders of results/ and ids of the page."""
    pages = (path.read_text(encoding="utf-8") for path in REPORT.rglob("*.html.j2"))
    ids = {name for page in pages for name in re.findall(r'(?:id=|folded\()"([\w-]+)"', page)}
    return FOLDERS | ids | {"all"}


def _names(wanted: Any, files: Iterable[str]) -> list[str]:
    """Split names of sweeps, from a list or from text with commas.

    Snakemake reads 123 and 1e3 as numbers: such a number means the sweep whose name it reads so.
    """
    if isinstance(wanted, str):
        names = wanted.replace(",", " ").split()
        if not names:
            raise InputError([f"--config sweeps={wanted}: empty; allowed: names, as sweeps=a,b"])
        return names
    if isinstance(wanted, list):
        return [
            n for item in wanted for n in ([item] if isinstance(item, str) else _names(item, files))
        ]
    from snakemake.cli import parse_config  # importing it takes a second

    read_as = {name: parse_config([f"sweeps={name}"])["sweeps"] for name in files}
    return [next((name for name, value in read_as.items() if value == wanted), str(wanted))]


# These import Polars, which only sweeps without measurement, with layouts or with solve need here.


def plan(checked: CheckedSweep, devices: Sequence[Accelerator]):
    """Return a sweep with its points as `Expanded`, or as `Predicted` if it has none to measure.

    `devices`: the known accelerators. Raises InputError with all mistakes.
    """
    names = [device.name for device in devices]
    for i, name in enumerate(checked.sweep.fit_measured_on if devices else ()):
        try:
            named(name, devices)
        except ValueError:
            unknown = f"fit_measured_on[{i}] = {show(name)}: unknown accelerator"
            checked.mistakes.add(f"{unknown}{offered(name, names, '')}")
    if checked.sweep.predicts_alone:
        from modelbudget.predict.predicted_grids import predicted as planned
    elif checked.sweep.solve:
        from modelbudget.predict.shape_search import planned
    else:
        planned = expanded
    sweep = planned(checked)
    if checked.sweep.layouts:
        from modelbudget.predict import layout_search

        layout_search.check(checked)
    return sweep


def check_models(catalogue: Catalogue) -> None:
    """Raise InputError with every mistake in the fields of named models, and in classes of series.

    Models that no sweep uses are checked too, since the report contains them. A mistake shared by
    several models of a file is reported once.
    """
    places: dict[tuple[Path | None, str], list[str]] = {}
    for base in sorted(catalogue.bases.values(), key=lambda base: base.model is None):
        lines = wrong_class(base)
        try:
            if base.model:
                named_architecture(base)
        except ValueError as error:
            lines = [*str(error).splitlines(), *lines]
        for line in lines:
            of_line = places.setdefault((base.path, line), [])
            if base.model or not of_line:
                of_line.append(f"models.{base.name}" if base.model else base.name)
    if places:
        raise InputError([_line(path, line, names) for (path, line), names in places.items()])


def _line(path: Path | None, line: str, names: list[str]) -> str:
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return f"{path}: {names[0]}{more}: {line}"
