"""Whether all comparisons of the last run agree, as an exit code: `make report` ends with it.

    python -m modelbudget.workflow.exit_code

Exit code 1 if a comparison disagrees, and 2 if there are no results. What could not be measured is
no disagreement.
"""

import json
import sys
from pathlib import Path

VERDICT = Path("results/verdict.json")
DISAGREES, UNKNOWN = 1, 2


def exit_code(path: Path) -> int:
    """Return 0 if all comparisons of a run agree, else the exit code."""
    try:
        agrees = json.loads(path.read_text(encoding="utf-8"))["agrees"]
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN
    return 0 if agrees is True else DISAGREES


if __name__ == "__main__":
    sys.exit(exit_code(VERDICT))
