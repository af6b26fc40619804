"""Ways in that the tests share."""

import gc
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Before torch is imported, and for every process that a test starts: the tests' products are tiny,
# and more threads than one mostly wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"
# Where an image sets it, each of the many processes would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
from filelock import FileLock
from helpers.huge_pages import collapse
from helpers.made_once import made_once
from helpers.project import ROOT, Project, with_sweeps
from helpers.tiers import ALL
from hypothesis import settings

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common import store
from modelbudget.common.code_digests import code, digest
from modelbudget.common.paths import files_in
from modelbudget.common.workers import guard
from modelbudget.huggingface import bounded_check
from modelbudget.sweeps.expand import Expanded, expand

pytest_plugins = ["helpers.cpu_seconds", "helpers.forked_workers", "helpers.moved_tests"]

CHROMIUM = Path("/usr/bin/chromium")
PRINTED = "printed.json"
PART = "part.pickle"

# The same examples in every run; `make test-random` draws others.
settings.register_profile("fixed", deadline=None, database=None, derandomize=True)
settings.register_profile(
    "random", deadline=None, database=None, derandomize=False, print_blob=True
)
settings.load_profile("fixed")


def pytest_configure(config):
    """Import what each process that trains imports, unless its parent has.

    The process that distributes the tests runs none.
    """
    sys.dont_write_bytecode = False
    gc.set_threshold(1_000_000)  # imports and cases leave little; files are collected one by one
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        import torch._dynamo  # noqa: F401


def pytest_collection_finish():
    gc.freeze()  # modules and cases, which stay: the first collections take a second otherwise
    collapse()


@pytest.fixture(scope="module", autouse=True)
def collect_garbage():
    """Collect what the tests of a file leave.

    Commands that run in this process switch collection off. One of gigabytes takes long to fork.
    """
    yield
    gc.enable()
    gc.collect()
    gc.freeze()  # what later collections need not visit


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    from helpers.catalogue import CATALOGUE  # not in the process that distributes the tests

    return CATALOGUE


@pytest.fixture
def sweep(tmp_path, catalogue):
    """Write a sweep file and expand it."""

    def expand_text(text: str) -> Expanded:
        path = tmp_path / "sweep.yaml"
        path.write_text("title: A test\nquestion: Why?\n" + text)
        return expand(path, catalogue)

    return expand_text


@pytest.fixture(scope="session")
def make_project(tmp_path_factory):
    return lambda: Project.without_sweeps(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id) -> Path:
    """A folder that all processes of the test run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder if worker_id == "master" else folder.parent


@pytest.fixture(scope="session")
def kept(shared, request):
    """Return a part of pages that depends on no sweep, computed once for what it is made of.

    One process computes it for all of the test run; pytest's cache keeps it for the next runs.
    """
    from modelbudget.common.files import replacing

    cached = getattr(request.config, "cache", None)  # not with -p no:cacheprovider

    @cache
    def part(name: str, compute: Callable[[], Any], made_of: str):
        def make(folder: Path) -> None:
            place = cached.mkdir(name) if cached else folder
            path = place / f"{made_of}.pickle"
            with FileLock(place / "lock"):
                if not path.exists():
                    for old in place.glob("*.pickle"):
                        old.unlink()
                    with replacing(path) as new:
                        new.write_bytes(pickle.dumps(compute()))
                shutil.copy(path, folder / PART)

        return pickle.loads((made_once(shared / name, make) / PART).read_bytes())

    return part


@pytest.fixture(scope="session")
def calculator_once(catalogue, kept):
    """Return a function that returns the page's calculator, of few kinds of models."""

    def once() -> dict:
        from helpers import few_kinds

        made_of = store.key(
            code("calculator"),
            digest([*files_in(ROOT / "configs" / "models"), Path(few_kinds.__file__)]),
            str(few_kinds.ALL),
        )
        return kept("calculator", partial(few_kinds.calculator_of_few, catalogue), made_of)

    return once


@pytest.fixture(scope="session")
def readings_once(catalogue, kept):
    """Let all processes predict the readings of GPUs, of others and our own, once."""
    from modelbudget.report import ratios

    compute = ratios.predicted

    @cache
    def once(other):
        if other is not catalogue:
            return compute(other)
        files = *files_in(ROOT / "configs" / "models"), ratios.READINGS
        made_of = store.key(code("report"), digest(files))
        return kept("readings", partial(compute, catalogue), made_of)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ratios, "predicted", once)
        yield once


@pytest.fixture(scope="session")
def reported(shared, catalogue, calculator_once, readings_once) -> Project:
    """A project with several sweeps and their report, from one run that all tests share.

    `run` holds what the run printed. A test that changes anything works on a copy. Its job
    `calculator` copies what the tests of the calculator compute, and `gpt2` traces a smaller
    model; not with TESTS=all.
    """

    def make(folder: Path) -> None:
        project = with_sweeps(folder)
        if not ALL:
            readings = readings_once(catalogue)
            project.replace_calculator(calculator_once(), readings)
            project.trace_few_layers()
        run = project.snakemake()
        assert run.returncode == 0, run.stdout + run.stderr
        printed = {"stdout": run.stdout, "stderr": run.stderr}
        (folder / PRINTED).write_text(json.dumps(printed))

    project = Project(made_once(shared / "reported", make))
    project.run = SimpleNamespace(**json.loads((project.folder / PRINTED).read_text()))
    return project


@pytest.fixture(scope="session")
def copy_of_reported(reported, tmp_path_factory):
    """Makes copies of that project, with all sweeps or those named."""
    return lambda *sweeps: reported.copy(tmp_path_factory.mktemp("copy"), *sweeps)


@pytest.fixture(scope="session")
def chromium():
    """The browser. Where CI runs, its absence fails a test and never skips it."""
    if not CHROMIUM.exists():
        if "CI" in os.environ:
            pytest.fail(f"{CHROMIUM} is not there, and CI is where these tests must run")
        pytest.skip(f"{CHROMIUM} is not there")
    from playwright.sync_api import sync_playwright

    # Forked processes hold copies of the driver's pipes, without whose end it does not stop: the
    # guard of workers, which stays, is started before, and the helper ended after.
    guard(os.getpid())
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--no-first-run"]
        )
        yield browser
        browser.close()
        bounded_check.end()


@contextmanager
def opening(browser):
    """Give a function that opens an address with no network, and close at the end what it opened.

    Every word of the console and every request is kept.
    """
    contexts = []

    def opened(address: str, width: int = 1280, scheme: str = "light", script: bool = True):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            offline=True,
            java_script_enabled=script,
        )
        contexts.append(context)
        tab = context.new_page()
        tab.messages, tab.requests = [], []
        tab.on("console", lambda message: tab.messages.append(message.text))
        tab.on("pageerror", lambda error: tab.messages.append(str(error)))
        tab.on("request", lambda request: tab.requests.append(request.url))
        tab.goto(address)
        return tab

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def open_page(chromium):
    """Opens an address in a tab of its own, which draws nothing during the next tests."""
    with opening(chromium) as opened:
        yield opened


@pytest.fixture(scope="module")
def read_page(chromium):
    """Opens an address for tests that only read it: all of a file that ask alike share a tab."""
    with opening(chromium) as opened:
        yield cache(opened)
