"""Which checkout's library the jobs of a run import."""

import os


def import_from(folder: str) -> None:
    """Let jobs import the library in a folder, whatever checkout the environment is of."""
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, others]))
