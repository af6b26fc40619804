"""For Snakemake in `forked_programs`: the script of the page's charts is bundled by one job alone.

It depends on nothing but vl-convert and the text that it is asked for, and takes a second.
"""

import hashlib
import os
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".pytest_cache" / "bundles"


def bundle_once() -> None:
    """Let this process, and those that it forks, share what vl-convert bundles with later ones."""
    import vl_convert

    bundle = vl_convert.javascript_bundle

    def bundled(snippet: str) -> str:
        name = hashlib.sha256(f"{vl_convert.__version__} {snippet}".encode()).hexdigest()
        path = FOLDER / name
        if not path.exists():
            FOLDER.mkdir(parents=True, exist_ok=True)
            new = FOLDER / f"{name}.{os.getpid()}"
            new.write_text(bundle(snippet), encoding="utf-8")
            new.replace(path)
        return path.read_text(encoding="utf-8")

    vl_convert.javascript_bundle = bundled
