"""A result depends on all code that its script can load, derived and not listed."""

import ast
import os
import re
from functools import cache
from pathlib import Path

import pytest
from helpers.forked_programs import python
from helpers.project import ROOT
from helpers.tiers import some

from modelbudget.architecture import record_data
from modelbudget.common import code_digests
from modelbudget.families import families

LIBRARY = ROOT / "modelbudget"
SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))
CLASSES = ROOT / "configs" / "huggingface"
IMPLEMENTATIONS = ROOT / "configs" / "implementations"
FIELD_NAMES = ROOT / "configs" / "field_names.yaml"
WITHOUT_SETTING = ROOT / "configs" / "names_without_setting.yaml"
READ_BY_NAME = {
    "report/ratios.py": ROOT / "configs" / "gpu_readings.yaml",
    "compare/recorded_peaks.py": ROOT / "configs" / "gpu_recordings.json",
    "catalogue/memory_margins.py": ROOT / "configs" / "memory_margins.yaml",
    "report/sections/counting.py": ROOT / "configs" / "published_scaling.yaml",
    "sweeps/check_quantities.py": ROOT / "configs" / "quantity_constraints.yaml",
    "sweeps/device_defaults.py": ROOT / "configs" / "attention_kernels.yaml",
    "architecture/run_rules.py": ROOT / "configs" / "run_constraints.yaml",
    "architecture/adapter_methods.py": ROOT / "configs" / "adapters.yaml",
    "architecture/counting_conventions.py": ROOT / "configs" / "counting_conventions.yaml",
    "api/changes.py": ROOT / "configs" / "memory_changes.yaml",
    "files/gguf_formats.py": ROOT / "configs" / "gguf.yaml",
    "files/log_lines.py": ROOT / "configs" / "logs.yaml",
    "api/vectors.py": ROOT / "configs" / "vectors.json",
    "report/calculator_runs.py": ROOT / "configs" / "calculator.yaml",
    "report/page_data.py": ROOT / "configs" / "page.yaml",
    "report/tables.py": ROOT / "configs" / "glossary.yaml",
    "huggingface/peft_classes.py": ROOT / "configs" / "peft_classes.yaml",
    "predict/compute_buffer.py": ROOT / "configs" / "compute_buffers.yaml",
    "serving/cache_formats.py": ROOT / "configs" / "cache_formats.yaml",
}
FOUND_BY_FOLDER = [
    LIBRARY / folder / "__init__.py"
    for folder in (
        "families",
        "report/sections",
        *(
            f"{kind}/{part}"
            for kind in ("components", "modules")
            for part in ("mixers", "feed_forward")
        ),
    )
]
FILES = sorted(
    path
    for folder in (LIBRARY, CLASSES)
    for path in folder.rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
)
PICTURES = LIBRARY / "report" / "charts" / "chart_files.py"
"""Reaches little of the library."""


@cache
def of_module(name: str) -> set[Path]:
    """The files that Python loads for `import name`, where it is a module of the library."""
    parts = name.split(".")
    places = [ROOT.joinpath(*parts[: i + 1]) for i in range(len(parts))]
    files = {f for p in places for f in (p / "__init__.py", p.with_suffix(".py")) if f.exists()}
    return files if parts[0] == "modelbudget" else set()


@cache
def imports(path: Path) -> set[str]:
    """Every name that a file imports, by Python's own parser, but for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def loadable(path: Path) -> set[Path]:
    """What can be loaded when a file is, found without the code under test."""
    reached, waiting = set(), {path}
    while waiting:
        here = waiting.pop()
        reached.add(here)
        waiting |= uses(here) - reached
    return reached


@cache
def uses(here: Path) -> frozenset[Path]:
    """What a file itself loads or reads."""
    if here.suffix != ".py":
        return frozenset()
    text = here.read_text(encoding="utf-8")
    files = {file for name in imports(here) for file in of_module(name)}
    if here in FOUND_BY_FOLDER:
        files |= set(here.parent.glob("*.*"))
    if here == LIBRARY / "report" / "tables.py":
        files |= set((here.parent / "templates").iterdir())
    if here == LIBRARY / "report" / "charts" / "chart_files.py":
        files |= {here.with_name("fonts.conf")}
    if here == LIBRARY / "huggingface" / "classes.py":
        files |= {file for file in CLASSES.rglob("*") if file.is_file()}
    if here == LIBRARY / "common" / "suggestions.py":
        files |= {FIELD_NAMES, WITHOUT_SETTING}
    name = here.relative_to(LIBRARY).as_posix() if here.is_relative_to(LIBRARY) else ""
    if name in READ_BY_NAME:
        files |= {READ_BY_NAME[name]}
    if here == LIBRARY / "architecture" / "record_data.py":
        files |= {*record_data.FILES}
    if here == LIBRARY / "architecture" / "run_config.py":
        files |= set(IMPLEMENTATIONS.glob("*.yaml"))
        files |= {READ_BY_NAME["serving/cache_formats.py"]}
    if here == LIBRARY / "architecture" / "optimizers.py":
        files |= set((ROOT / "configs" / "optimizers").rglob("*.yaml"))
    if here == LIBRARY / "architecture" / "stored_formats.py":
        files |= set((ROOT / "configs" / "weight_formats").glob("*.yaml"))
    for name in re.findall(r'"-m", "(modelbudget[.a-z]+)"', text):
        files |= of_module(name)
    return frozenset(files)


def test_imports_are_found_as_python_finds_them():
    for path in (file for file in FILES if file.suffix == ".py"):
        found = code_digests._names_imported(path.read_text(encoding="utf-8"))
        assert imports(path) <= found, path
        others = {name for name in found - imports(path) if of_module(name)}
        assert others <= {"modelbudget.measurement.process.resident_memory"}, path


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_depends_on_what_it_can_load_and_on_nothing_else(script):
    path = ROOT / "scripts" / f"{script}.py"
    assert code_digests.reached([path]) == loadable(path)


def test_a_changed_file_concerns_the_scripts_that_reach_it(monkeypatch):
    """Files of all folders of the library, templates among them."""

    def digests() -> dict[str, str]:
        code_digests.code.cache_clear()
        return {script: code_digests.code(script)["code"] for script in SCRIPTS}

    before, content = digests(), code_digests._content
    reached = {script: loadable(ROOT / "scripts" / f"{script}.py") for script in SCRIPTS}
    for changed in some(FILES[::20], 2):
        edited = lambda path, changed=changed: content(path) + b"#" * (path == changed)  # noqa: E731
        monkeypatch.setattr(code_digests, "_content", edited)
        after = digests()
        concerned = {script for script in SCRIPTS if before[script] != after[script]}
        assert concerned == {script for script in SCRIPTS if changed in reached[script]}, changed
    code_digests.code.cache_clear()
    assert "modelbudget/architecture/arithmetic.py" in {
        str(path.relative_to(ROOT)) for path in reached["compare"]
    }
    components = LIBRARY / "components"
    of_components = set(components.rglob("[a-z]*.py")) - {components / "groups.py"}
    assert of_components <= reached["compare"]
    for folder in ("templates", "sections"):  # a section's template changed the page of no run
        files = (LIBRARY / "report" / folder).rglob("*.*")
        assert {file for file in files if "__pycache__" not in file.parts} <= reached["report"]
    assert CLASSES / "model_types" / "llama.yaml" in reached["points"]
    assert FIELD_NAMES in reached["points"]
    assert CLASSES / "keys.yaml" not in loadable(PICTURES)


@pytest.mark.parametrize("script", ["points", "measure", "compare", "calculator", "report"])
def test_nothing_is_loaded_that_is_no_dependency(script):
    path = ROOT / "scripts" / f"{script}.py"
    statements = "\n".join(re.findall(r"^(?:from|import) .*", path.read_text(), re.MULTILINE))
    code = (
        f"import sys\n{statements}\nfrom modelbudget.families import families\nfamilies()\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('modelbudget')))"
    )
    run = python(ROOT, code)
    assert run.returncode == 0, run.stderr
    loaded = set(map(Path, run.stdout.split()))
    families = code_digests.reached([LIBRARY / "families" / "__init__.py"])
    assert loaded <= code_digests.reached([path]) | families


def test_one_function_writes_every_csv():
    """The one in which no text is a formula of a spreadsheet."""
    files = [*FILES, *(ROOT / "scripts").glob("*.py")]
    writers = {f.name for f in files if f.suffix == ".py" and ".write_csv(" in f.read_text()}
    assert writers == {"spreadsheet.py"}


OF_MEASURING = {
    "architecture/run_config.py", "architecture/terms.py", "architecture/record.py",
    "sweeps/sweep_file.py", "measurement/trace/module_trace.py",
}  # fmt: skip


def test_the_key_of_a_measurement_depends_on_what_measures():
    reached = {os.path.relpath(path, LIBRARY) for path in
               code_digests.reached(
                   [LIBRARY / "measurement" / "process" / "measure_in_processes.py"])}  # fmt: skip
    assert reached >= OF_MEASURING
    assert not {name for name in reached if name.startswith(("components/", "report/"))}


def test_the_key_of_a_measured_class_of_transformers_depends_on_the_data_of_classes(monkeypatch):
    """The keys of a config that may be large are among them."""

    def digest() -> str:
        code_digests.code_of_model.cache_clear()
        return code_digests.code_of_model(families()["hugging-face"])

    before, content = digest(), code_digests._content
    monkeypatch.setattr(
        code_digests, "_content", lambda path: content(path) + b"#" * (path.name == "keys.yaml")
    )
    assert digest() != before
    code_digests.code_of_model.cache_clear()


def test_packages_that_code_imports_are_part_of_it():
    assert code_digests.code("measure").keys() >= {"torch", "transformers", "polars"}
    of_pictures = code_digests._packages(code_digests.reached([PICTURES]))
    assert "torch" not in of_pictures
    assert "vl-convert-python" in of_pictures
    for script in SCRIPTS:
        assert None not in code_digests.code(script).values()


def test_what_all_share_imports_nothing_else_of_the_library():
    for path in (LIBRARY / "common").glob("*.py"):
        folders = {file.parent for name in imports(path) for file in of_module(name)}
        assert folders <= {LIBRARY, LIBRARY / "common"}, path
