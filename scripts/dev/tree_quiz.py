"""Print the tree of the project, and everyday tasks: which file would you open first?

python scripts/dev/tree_quiz.py              # for a reader who has not seen the project
python scripts/dev/tree_quiz.py --answers    # with the file of each task
"""

import subprocess
import sys
from itertools import groupby
from pathlib import Path, PurePosixPath

import yaml

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "tests" / "unit" / "tree_quiz.yaml"
NOT_SHOWN = ("tests/", "docs/", ".")


def main() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [
        PurePosixPath(name) for name in listed.stdout.split() if not name.startswith(NOT_SHOWN)
    ]
    for folder, names in groupby(sorted(files, key=lambda file: file.parent), lambda f: f.parent):
        print(f"{folder}/", *sorted(file.name for file in names if file.name != "__init__.py"))
    print()
    for n, task in enumerate(yaml.safe_load(TASKS.read_text()), 1):
        print(f"{n}. {task['task']}", task["file"] if "--answers" in sys.argv else "")


if __name__ == "__main__":
    main()
