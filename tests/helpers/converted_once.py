"""For Snakemake in `forked_programs`: what vl-convert makes for the page is made by one job alone.

It depends on nothing but vl-convert and what that is called with. The script of the charts takes a
second, and the first chart of a job half of one.
"""

import hashlib
import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".pytest_cache" / "vl_convert"


def convert_once() -> None:
    """Let this process, and those that it forks, share what vl-convert makes with later ones."""
    import vl_convert

    for function in (vl_convert.javascript_bundle, vl_convert.vegalite_to_vega):
        setattr(vl_convert, function.__name__, _kept(function, vl_convert.__version__))


def _kept(function: Callable, version: str) -> Callable:
    @wraps(function)
    def kept(argument):
        called = json.dumps([version, function.__name__, argument])
        path = FOLDER / hashlib.sha256(called.encode()).hexdigest()
        if not path.exists():
            FOLDER.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(function(argument)), encoding="utf-8")
            new.replace(path)
        return json.loads(path.read_text(encoding="utf-8"))

    return kept
