"""The command's entry: `modelbudget MODEL` and the subcommands."""

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperGroup

from modelbudget.api.command.option_words import with_options
from modelbudget.api.command.options import (
    options_of,
    other_name,
    refuse_without_value,
    version,
    wrong_value,
)
from modelbudget.common.errors import InputError

GROUP_OPTIONS = ("--help", "--version", "--install-completion", "--show-completion")
SUBCOMMANDS = (
    "show", "compare", "conventions", "measure", "sweep", "models", "lock", "check", "explain",
    "vectors",
)  # fmt: skip
"""The first one is that of a MODEL."""
COMPLETES = "_MODELBUDGET_COMPLETE"
"""Set where a shell completes a command line."""
WRONG_INPUT = 2
UsageError: Any = typer.BadParameter.__mro__[2]
"""The base class of all errors of the command line."""


@contextmanager
def _end_without_reader() -> Iterator[None]:
    """End in order where nobody reads on (`| head`); typer's own exit code of that is 1."""
    try:
        yield
    except BrokenPipeError:
        raise typer.Exit from None


class _ModelByDefault(TyperGroup):
    """Reads `modelbudget palm-540b` as `modelbudget show palm-540b`."""

    def parse_args(self, ctx, args: list[str]) -> list[str]:
        if not args:
            args = ["--help"]
        elif args[0] not in (*self.commands, *GROUP_OPTIONS):
            args = [SUBCOMMANDS[0], *args]
        if args[0] in self.commands:
            refuse_without_value(self.commands[args[0]].params, args[1:])
        with _end_without_reader():
            return super().parse_args(ctx, args)

    def invoke(self, ctx):
        with _end_without_reader():
            return super().invoke(ctx)

    def shell_complete(self, ctx, incomplete: str) -> list:
        """Return subcommands and options, and what completes the MODEL of `show`."""
        model = self.commands["show"].params[0]
        return [*super().shell_complete(ctx, incomplete), *model.shell_complete(ctx, incomplete)]


app = typer.Typer(cls=_ModelByDefault, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def _main(
    _: bool = typer.Option(
        False, "--version", callback=version, is_eager=True, help="Print the version and end."
    ),
) -> None:
    """Show where the parameters, memory and FLOPs of a sequence model go.

    `modelbudget MODEL` is short for `modelbudget show MODEL`:

    \b
      modelbudget llama-3-8b                            what is in it
      modelbudget config.json --batch 8 --length 4096   your own model
      modelbudget llama-3-8b --train --fit rtx-4090     does it fit
      modelbudget llama-3-8b --serve rtx-4090           how many requests
      modelbudget show --help                           all options
    """


def subcommands(*names: str) -> dict[str, ModuleType]:
    """Return the files of subcommands by name, of all in the order in which help lists them."""
    return {
        name: importlib.import_module(f"modelbudget.api.command.{name}")
        for name in names or SUBCOMMANDS
    }


def _asked_for(args: list[str]) -> list[str]:
    """Return the name of the subcommand that the arguments need; none if they need all."""
    if not args or args[0] in GROUP_OPTIONS or COMPLETES in os.environ:
        return []
    return [args[0] if args[0] in SUBCOMMANDS else SUBCOMMANDS[0]]


def main() -> None:
    """Run the command. Exit codes: 0; 1 if formula and measurement differ; 2 for wrong input."""
    gc.disable()  # a command of a third of a second has nothing worth collecting
    atexit.register(gc.freeze)  # neither at its end, where it would take a seventh of the time
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # a search of all packages
    registered = {command.name for command in app.registered_commands}
    for name, subcommand in subcommands(*_asked_for(sys.argv[1:])).items():
        if name not in registered:
            app.command(name)(subcommand.run)
    code = 0
    try:
        code = app(prog_name="modelbudget", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        _end("\n".join(error.mistakes))
    except UsageError as error:
        of_model = options_of(subcommands("show")["show"].run)
        text = wrong_value(error) or other_name(error, of_model)
        _end(text or " ".join(error.format_message().split()))
    except typer.Abort:
        sys.exit(130)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        if not isinstance(error, BrokenPipeError):  # of `modelbudget models | head`
            _end(f"{error.filename2 or error.filename or 'output'}: {error.strerror}")
    sys.exit(code)


def _end(message: str) -> None:
    print(with_options(message), file=sys.stderr)
    sys.exit(WRONG_INPUT)
