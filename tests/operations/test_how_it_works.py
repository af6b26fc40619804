"""What docs/how-it-works.md prints is what its code prints."""

import re
from contextlib import redirect_stdout
from io import StringIO

from helpers.project import ROOT


def test_the_printed_allocations_are_those_of_the_program():
    text = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    ((code, printed),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.S)
    output = StringIO()
    with redirect_stdout(output):
        exec(code, {})
    assert output.getvalue() == printed
