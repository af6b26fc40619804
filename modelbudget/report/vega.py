"""The script that draws charts in the page."""

import re
import subprocess
import sys
from collections.abc import Callable

import vl_convert


def vega() -> str:
    """Return Vega with vega-embed as one script."""
    # The stub requires a snippet, which the function does not.
    script = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue]
    # Its global names have default exports, which Vega-Lite has none of, instead of the module.
    export = re.search(
        r"const (\w+)=null;const (\w+)=function\(\)\{return\{accessPathDepth:", script
    )
    if export is None:
        raise ValueError("the script that draws charts has no module of Vega-Lite")
    return script.replace(f"window.vegaLite={export[1]}", f"window.vegaLite={export[2]}")


def begun() -> Callable[[], str]:
    """Begin to make it in another process, and return a function that waits for it.

    It takes a second, as long as a small page takes.
    """
    command = [sys.executable, "-m", "modelbudget.report.vega"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8")

    def script() -> str:
        text, _ = process.communicate()
        if process.returncode:
            raise OSError(f"the script that draws charts: exit code {process.returncode}")
        return text

    return script


if __name__ == "__main__":
    sys.stdout.write(vega())
