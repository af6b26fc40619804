"""Jobs import the library of their own checkout, also where `make report` linked another one."""

import subprocess
import sys

from modelbudget.workflow.setup import import_from


def test_a_folder_comes_before_what_the_environment_has(tmp_path, monkeypatch):
    for name in ("linked", "checkout"):
        package = tmp_path / name / "modelbudget"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"print({name!r})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "linked"))
    import_from(str(tmp_path / "checkout"))
    job = subprocess.run([sys.executable, "-c", "import modelbudget"], cwd=tmp_path,
                         capture_output=True, text=True, check=True)  # fmt: skip
    assert job.stdout == "checkout\n"


def test_jobs_write_bytecode_though_an_image_forbids_it(tmp_path, monkeypatch):
    (tmp_path / "module.py").touch()
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    import_from(str(tmp_path))
    subprocess.run([sys.executable, "-c", "import module"], cwd=tmp_path, check=True)
    assert list(tmp_path.glob("__pycache__/module.*.pyc"))
