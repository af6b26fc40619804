"""Imports: prediction without torch, measurement without formulas, no circle; names of files."""

import re
import subprocess
import sys
from collections import defaultdict
from ctypes.util import find_library
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml
from helpers.forked_programs import python
from helpers.project import ROOT

from modelbudget.common.discover import Modules


def imported_by(statement: str) -> set[str]:
    """Return the modules that a Python has which ran a statement and nothing else."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def loaded_of_library(statement: str) -> set[str]:
    """Return those of the library alone, of a process that has imported torch before."""
    run = python(ROOT, f"import sys\n{statement}\nprint(*sys.modules)")
    assert run.returncode == 0, run.stderr
    return {name for name in run.stdout.split() if name.startswith("modelbudget")}


def test_prediction_never_imports_torch_or_a_module():
    loaded = imported_by(
        "import modelbudget.predict.predict, modelbudget.sweeps.expand\n"
        "from modelbudget.families import families; families()"
    )
    assert "torch" not in loaded
    assert not {name for name in loaded if name.startswith("modelbudget.modules")}


def test_modules_and_measurement_never_import_a_formula():
    """Every file of both: the only rules of memory that they know are the allocator's."""
    loaded = loaded_of_library(f"{of_folder('modules')}\n{of_folder('measurement')}")
    formulas = ("modelbudget.components", "modelbudget.families.", "modelbudget.predict",
                "modelbudget.compare", "modelbudget.memory.")  # fmt: skip
    found = {name for name in loaded if name.startswith(formulas)}
    assert found <= {"modelbudget.memory.caching_allocator"}
    # Nor inside of a function.
    for name in ("modules", "measurement"):
        for path in (ROOT / "modelbudget" / name).rglob("*.py"):
            assert not re.search(r"modelbudget\.(components|predict|compare)\b", path.read_text())


def of_folder(name: str) -> str:
    files = (path.relative_to(ROOT) for path in (ROOT / "modelbudget" / name).rglob("[a-z]*.py"))
    return "\n".join(f"import {'.'.join(path.with_suffix('').parts)}" for path in files)


def test_operations_and_programs_import_no_torch_and_read_no_module():
    """A program must not be able to copy what is measured."""
    loaded = imported_by(f"{of_folder('operations')}\n{of_folder('quantities')}")
    assert not loaded & {"torch", "transformers"}
    assert not {name for name in loaded if name.startswith("modelbudget.modules")}
    for path in (ROOT / "modelbudget" / "operations").glob("*.py"):
        names = {*re.findall(r"^\s*from modelbudget\.(\w+)", path.read_text(), re.MULTILINE)}
        assert names <= {"operations"}


def test_measuring_a_model_alone_imports_no_parallel_code():
    loaded = imported_by(
        "import modelbudget.measurement.process.measure_in_processes;"
        "import modelbudget.measurement.measured_table"
    )
    assert "torch.distributed.tensor" not in loaded  # half a second


def test_reading_a_sweep_needs_no_heavy_library():
    loaded = imported_by("import modelbudget.workflow.chosen_sweeps, modelbudget.workflow.targets")
    assert not loaded & {"torch", "polars", "pandas", "altair", "sympy", "transformers"}


def test_noting_versions_asks_torch_only_where_a_driver_is():
    loaded = imported_by("from modelbudget.common.run_metadata import provenance; provenance()")
    assert ("torch" in loaded) == bool(find_library("cuda"))


def test_memory_knows_no_component():
    files = (ROOT / "modelbudget" / "memory").glob("[a-z]*.py")
    imports = "\n".join(f"import modelbudget.memory.{path.stem}" for path in files)
    assert not {name for name in imported_by(imports) if "components" in name}


def test_imports_between_folders_have_no_circle():
    library = ROOT / "modelbudget"
    folders: dict[str, set[str]] = {}
    for path in library.glob("*/**/*.py"):
        folder = path.relative_to(library).parts[0]
        imported = re.findall(r"^\s*from modelbudget\.(\w+)", path.read_text(), re.MULTILINE)
        folders.setdefault(folder, set()).update(set(imported) - {folder})
    assert [*TopologicalSorter(folders).static_order()]
    listed = (ROOT / "CONTRIBUTING.md").read_text()
    for path in library.iterdir():
        if any(path.glob("*.py")):  # a folder of a former name keeps its bytecode
            assert f"| `modelbudget/{path.name}/` |" in listed, path


def test_contributing_names_files_that_exist():
    """Those of the tables, of the project or of the library."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    names = {n for row in rows for n in re.findall(r"`([\w./-]+\.(?:py|yaml))`", row)}
    places = (ROOT, ROOT / "modelbudget")
    assert not {n for n in names if "NAME" not in n and not any((p / n).exists() for p in places)}


LIBRARY = ROOT / "modelbudget"
FILES = sorted(path.relative_to(LIBRARY) for path in LIBRARY.rglob("[a-z]*.py"))


def test_imports_between_files_have_no_circle():
    """Also those inside of functions and for types alone, which hide a circle from Python.

    An operation's gradient is computed by other operations: these know each other.
    """
    names = {".".join(path.with_suffix("").parts): path for path in FILES}
    statement = re.compile(
        r"^[ \t]*from modelbudget\.([\w.]+) import (\([^)]*\)|[^\n]+)", re.MULTILINE
    )
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        found = statement.findall((LIBRARY / path).read_text())
        imported = {
            f"{module}.{word}" if f"{module}.{word}" in names else module
            for module, members in found
            for word in re.findall(r"\w+", members)
        }
        graph[name] = {one for one in imported & names.keys() if one != name}
        if name.startswith("operations."):
            graph[name] = {one for one in graph[name] if not one.startswith("operations.")}
    assert [*TopologicalSorter(graph).static_order()]


def test_files_have_names_of_their_own():
    """But the two halves of a part, and a subcommand with the function that it calls."""
    folders = defaultdict(set)
    for path in FILES:
        folders[path.name].add(path.parent.as_posix())
    halves = {"components", "modules", "families"}
    for name, places in folders.items():
        kinds = [place.split("/")[0] for place in places]
        is_part = set(kinds) <= halves and len(set(kinds)) == len(kinds)
        assert len(places) == 1 or is_part or places == {"api", "api/command"}, (name, places)


def test_the_quiz_of_the_tree_names_files_that_exist():
    tasks = yaml.safe_load(Path(__file__).with_name("tree_quiz.yaml").read_text())
    assert len({task["task"] for task in tasks}) == len(tasks) >= 40
    assert not [task for task in tasks if not (ROOT / task["file"]).is_file()]


def test_a_part_that_has_a_program_alone_is_named_by_the_file_that_is_missing():
    """Only here: `measure` of a new mixer ended in `KeyError: 'new'`."""
    with pytest.raises(FileNotFoundError, match=r"no file modelbudget/modules/mixers/new\.py"):
        Modules([], "modelbudget.modules.mixers")["new"]
