"""Run commands of `modelbudget` and Python programs, which stdin has as JSON, in this process.

Prints JSON: for each command and each statement the line, its exit code (2 for an InputError, 1 for
another exception), what it wrote on stderr, and of a command what it wrote on a terminal.
"""

import contextlib
import io
import json
import sys
import traceback

import modelbudget
from modelbudget.api.command.app import main


class Terminal(io.StringIO):
    """What a command prints on a terminal, whose columns are those of the environment."""

    def isatty(self) -> bool:
        return True


def of_command(words: list[str]) -> list:
    out, said = Terminal(), io.StringIO()
    sys.argv = ["modelbudget", *words]
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        except Exception:
            code = 1
            traceback.print_exc()
    return [" ".join(sys.argv), code, said.getvalue(), out.getvalue()]


def of_statement(text: str, names: dict) -> list:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(text, names)
        except modelbudget.InputError as error:
            return [text, 2, str(error), ""]
        except Exception:
            return [text, 1, traceback.format_exc(), ""]
    return [text, 0, "", ""]


lines = json.load(sys.stdin)
done = [of_command(words) for words in lines["commands"]]
for program in lines["programs"]:
    names = {}
    done += [of_statement(text, names) for text in program]
print(json.dumps(done))
