"""Which checkout's library the jobs of a run import, and how fast."""

import os


def import_from(folder: str) -> None:
    """Let jobs import the library in a folder, whatever checkout the environment is of.

    And let them write its bytecode: where an image forbids that, each job and each of its worker
    processes compiles all that it imports.
    """
    folders = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, folders]))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
