"""`modelbudget explain FILE`: what each number of a file is made of."""

from typing import Annotated

import typer

from modelbudget.api.command import options, output
from modelbudget.api.command.text_table import Table
from modelbudget.api.explain import explain


@options.expanded
def run(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A log (-: of stdin), .gguf or safetensors, an adapter, a snapshot.pickle.",
        ),
    ],
    *,
    model: Annotated[str | None, "Whose file it is.", "MODEL"] = None,
    set: options.Fields = None,
    printed: options.Output,
) -> None:
    """Explain each number of a file, such as a server's log.

    Nothing is guessed: what the file does not say is asked for by name.
    """
    path = "/dev/stdin" if file == "-" else file
    explained = explain(path, model, options.RunOptions(set=set).settings())
    rows = [(line.name, line.printed, line.explained, line.in_words) for line in explained.lines]
    title = f"{explained.path.name}: {explained.title}"
    table = Table(title, ("", "file", "explained", ""), rows, texts=("explained", ""))
    printed.show(explained.as_dict(), explained.rows(), [table])
    output.print_notes(f"not in the file: {line}" for line in explained.asked)
    output.print_notes(filter(None, [explained.next_step]))
