"""Ways in that the tests share."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from modelbudget.catalogue.models import Catalogue
from modelbudget.sweep.expand import Expanded, expand

ROOT = Path(__file__).parent.parent
CHROMIUM = Path("/usr/bin/chromium")
PARTS_OF_THE_PROJECT = (
    "Snakefile", "configs", "environment.yml", "modelbudget", "profiles", "scripts", "workflow",
)  # fmt: skip


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return Catalogue(ROOT / "configs" / "models")


@pytest.fixture
def sweep(tmp_path, catalogue):
    """Write a sweep file and expand it."""

    def expand_text(text: str) -> Expanded:
        path = tmp_path / "sweep.yaml"
        path.write_text("title: A test\nquestion: Why?\n" + text)
        return expand(path, catalogue)

    return expand_text


class Project:
    """A copy of the project that a test may change, and Snakemake in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        for part in PARTS_OF_THE_PROJECT:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, folder / part)
        for sweep in (folder / "configs" / "sweeps").iterdir():
            sweep.unlink()

    def write_sweep(self, name: str, text: str) -> Path:
        path = self.folder / "configs" / "sweeps" / name
        path.write_text("title: A test\nquestion: Why?\n" + text)
        return path

    def log(self, sweep: str, rule: str) -> str:
        return (self.folder / "results" / sweep / "logs" / f"{rule}.log").read_text()

    def snakemake(self, *arguments: str, **of_process) -> subprocess.CompletedProcess:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
        return subprocess.run(
            [sys.executable, "-m", "snakemake", "--cores", "2", *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            **of_process,
        )


@pytest.fixture(scope="session")
def make_project(tmp_path_factory):
    return lambda: Project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="session")
def chromium():
    """The browser. Where CI runs, its absence fails a test and never skips it."""
    if not CHROMIUM.exists():
        if "CI" in os.environ:
            pytest.fail(f"{CHROMIUM} is not there, and CI is where these tests must run")
        pytest.skip(f"{CHROMIUM} is not there")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--no-first-run"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Opens an address with no network; every word of the console and every request is kept."""

    def opened(address: str, width: int = 1280, scheme: str = "light", script: bool = True):
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            offline=True,
            java_script_enabled=script,
        )
        tab = context.new_page()
        tab.said, tab.asked = [], []
        tab.on("console", lambda message: tab.said.append(message.text))
        tab.on("pageerror", lambda error: tab.said.append(str(error)))
        tab.on("request", lambda request: tab.asked.append(request.url))
        tab.goto(address)
        return tab

    return opened
