"""Options that several subcommands share, and the run settings that they make."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import Annotated, Any, NamedTuple, get_args

import typer

from modelbudget import __version__
from modelbudget.api.command import output
from modelbudget.api.command.option_words import with_options
from modelbudget.api.command.text_table import Table
from modelbudget.common.attributes import with_attributes
from modelbudget.common.errors import InputError
from modelbudget.common.paths import CONFIGS


def version(wanted: bool) -> None:
    """Print the version and end, if that is wanted."""
    if wanted:
        typer.echo(f"modelbudget {__version__}")
        raise typer.Exit


def known_names(incomplete: str) -> list[str]:
    """Return the names of published models that begin so, for a shell's completion."""
    from modelbudget.catalogue.named_models import all_models

    bases = all_models(CONFIGS / "models")
    return [base.name for base in bases if base.name.startswith(incomplete)]


OF_OTHERS = {
    ("weights", "nf4"): "write bnb-4bit or bnb-4bit-double",
    ("adapter", "qlora"): "write lora, with --weights bnb-4bit-double",
    ("weights", r"i?q\d_\w+"): "of GGUF files; allowed: --file gguf --format {}",
}
"""Option and words of QLoRA, which is LoRA over 4 bits, and of llama.cpp → what to write."""
_SEVERAL = re.compile(r",\s*(?=\w+=)")
"""Between the fields of one `--set`, as the table of changes prints them."""
_WHOLE = re.compile(r"[+-]?(?=.{1,100}$)[0-9]+(_[0-9]+)*")


def _value(option: str, text: str) -> bool | int | str:
    """Return a value. Raises InputError for 32k: some mean 32,768 by it, others 32,000."""
    if thousands := re.fullmatch(r"([0-9]{1,9})k", text.casefold()):
        number = int(thousands[1])
        raise InputError([f"{option}{text}: write {number * 1024} or {number * 1000}"])
    if text.casefold() in ("true", "false"):
        return text.casefold() == "true"
    return int(text) if _WHOLE.fullmatch(text) else text


def _without_equals_sign(text: str) -> str:
    """Return what is wrong with a field, and what to write for a line of a YAML file."""
    if line := re.fullmatch(r"\s*(\w+)\s*[:\s]\s*(\S.*)", text):
        return f"no equals sign; write --set {line[1]}={line[2]}"
    return "no value; allowed: FIELD=VALUE (docs/fields.md)"


def refuse_without_value(params: list[Any], args: list[str]) -> None:
    """Raise InputError for an option whose value is missing: at the end, or before another."""
    by_name = {name: param for param in params for name in param.opts if name.startswith("--")}
    for name, value in pairwise([*args, "--help"]):
        param = by_name.get(name)
        if param and not param.is_flag and (value == "--help" or value in by_name):
            raise InputError(
                [f"{name}: no value; write {name} {param.metavar or '…'}: {param.help}"]
            )


def wrong_value(error: Any) -> str | None:
    """Return what is wrong with the value of an option; None if an error is about something else.

    The command line checks values with pydantic.
    """
    cause = error.__cause__
    if not hasattr(cause, "errors") or error.param is None:
        return None
    from modelbudget.common.validation_messages import describe

    return describe(cause, within=error.param.opts[0])[0]


def other_name(error: Any, of_model: set[str]) -> str | None:
    """Return what to write for an option of another tool, or a word too many; None if unknown.

    `of_model`: options of `modelbudget MODEL`, which another subcommand may have not.
    """
    if extra := re.search(r"extra arguments?(?:\(s\))? \((.*)\)", error.format_message()):
        if re.fullmatch("[kMGT]i?B", extra[1], re.IGNORECASE):
            return f"{extra[1]}: a unit alone; allowed: without a space, such as 24{extra[1]}"
        model = error.ctx.params.get("name") if error.ctx else None
        return model and f"{extra[1]}: too many; MODEL = {model!r} was read before"
    if not hasattr(error, "possibilities"):  # that there is no such option
        return None
    from modelbudget.architecture.adapter_methods import OF_LAYERS
    from modelbudget.architecture.run_config import RunConfig
    from modelbudget.common.suggestions import SAME_WORD, nearest, without_setting
    from modelbudget.families import families

    name = error.option_name.lstrip("-").replace("-", "_")
    ours = [option for parameter in error.ctx.command.params for option in parameter.opts]
    wanted = {option.lstrip("-"): option for option in ours if option.startswith("--")}
    if "set" in wanted:
        known = (RunConfig, *families().values())
        fields = {field: f"--set {field}=…" for of in known for field in of.model_fields}
        wanted = fields | wanted
    near = [wanted[option] for option in nearest(name, wanted, 1, SAME_WORD)]
    if name not in wanted and error.option_name in of_model:
        near = [f"modelbudget MODEL {error.option_name}"]
    elif name in OF_LAYERS and "adapter" in wanted:
        near = [f"--adapter {name}"]
    elif name == "qlora":
        near = ["--adapter lora --weights bnb-4bit"]
    elif name in ("output", "output_format") and "json" in wanted:
        near = ["--json, --csv, --markdown"]
    meant = f"allowed: {near[0]}" if near else without_setting(name)
    return meant and f"{error.option_name}: no such option; {meant}"


def options_of(run: Callable[..., None]) -> set[str]:
    parameters = inspect.signature(run).parameters.values()
    of_each = (getattr(of.annotation, "__metadata__", ()) for of in parameters)
    return {option.default for option in chain.from_iterable(of_each)}  # where typer has a flag


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Name (see `modelbudget models`), config.json, its folder or safetensors file, or "
        "package.module:function.",
        autocompletion=known_names,
    ),
]
Models = Annotated[list[str], typer.Argument(metavar="MODEL…", autocompletion=known_names)]
Length = Annotated[str | None, "Tokens in each sequence.", "N"]
Fields = Annotated[list[str] | None, "Any field of docs/fields.md; repeatable.", "FIELD=VALUE"]
OnlyTraining = Annotated[bool, "Only training."]
OnlyInference = Annotated[bool, "Only inference."]


class RunOptions(NamedTuple):
    """The options that set fields of a model and its run."""

    batch: Annotated[str | None, "Sequences in one step, of each replica.", "N"] = None
    length: Length = None
    dtype: Annotated[str | None, "float32, bfloat16, …"] = None
    implementation: Annotated[str | None, "Whose code computes: modelbudget, transformers, …"] = (
        None
    )
    weights: Annotated[str | None, "Format of weights: awq, bnb-4bit-double, …"] = None
    adapter: Annotated[str | None, "Train an adapter alone: lora, dora, vera, …"] = None
    rank: Annotated[str | None, "With --adapter: its rank.", "N"] = None
    optimizer: Annotated[str | None, "adamw, adamw-8bit, muon, … (docs/optimizers.md)"] = None
    set: Fields = None

    def settings(self) -> dict[str, Any]:
        """Return the fields that the command line sets. Raises InputError."""
        given = {name: text for name, text in self._asdict().items() if text is not None}
        fields = given.pop("set", ())
        settings: dict[str, Any] = {
            "adapter_rank" if name == "rank" else name: _value(f"--{name} ", text)
            if name in ("batch", "length", "rank")
            else text
            for name, text in given.items()
        }
        for (option, words), allowed in OF_OTHERS.items():
            if re.fullmatch(words, text := str(settings.get(option)), re.IGNORECASE):
                raise InputError([f"--{option} {text}: {allowed.format(text.upper())}"])
        for text in (part for texts in fields for part in _SEVERAL.split(texts)):
            name, equals, value = text.partition("=")
            if not equals or not name.strip():
                raise InputError([f"--set {text}: {_without_equals_sign(text)}"])
            settings[name.strip()] = _value(f"--set {name.strip()}=", value.strip())
        return settings


class Output(NamedTuple):
    """The options that say how an answer is printed: as tables if none is set."""

    json: Annotated[bool, "Print JSON with exact numbers."] = False
    csv: Annotated[bool, "Print CSV with exact numbers."] = False
    markdown: Annotated[bool, "Print tables for pasting."] = False

    def show(
        self, content: dict[str, Any], rows: list[dict], tables: Sequence[Table],
        notes: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """Print an answer as JSON, as CSV or as tables, with what readers of these must know."""
        if self.json:
            output.print_json(content)
        elif self.csv:
            output.print_csv(rows)
        else:
            output.print_tables(tables, self.markdown)
            output.print_notes(notes)


def expanded(function: Callable[..., None]) -> Callable[..., None]:
    """Give a subcommand its options: one for each field of a parameter that is a tuple of several.

    An option has the name of its parameter; texts in its annotation are its help and what its value
    is called.
    """
    signature = inspect.signature(function, eval_str=True)
    named = inspect.Parameter.KEYWORD_ONLY
    groups, parameters = {}, []
    for name, parameter in signature.parameters.items():
        group, options = parameter.annotation, [parameter]
        if isinstance(group, type) and issubclass(group, tuple):
            groups[name] = group
            options = inspect.signature(group, eval_str=True).parameters.values()
        parameters += [of.replace(annotation=_option(of), kind=named) for of in options]

    @functools.wraps(function)
    def run(**options: Any) -> None:
        of_groups = {
            name: group(*map(options.pop, group._fields)) for name, group in groups.items()
        }
        if sum(of_groups.get("printed", ())) > 1:
            raise InputError(["--json, --csv, --markdown: allowed: one of them"])
        try:
            function(**options, **of_groups)
        except InputError as error:
            device = "fit" if options.get("serve") is None else "serve"
            raise InputError([with_options(line, device) for line in error.mistakes]) from None

    return with_attributes(run, __signature__=signature.replace(parameters=parameters))


def _option(parameter: inspect.Parameter) -> Any:
    """Return the annotation of a parameter as typer reads it."""
    match get_args(parameter.annotation):
        case (value, str(about), *metavar):
            flag = f"--{parameter.name.replace('_', '-')}"
            return Annotated[
                value, typer.Option(flag, help=about, metavar="".join(metavar) or None)
            ]
    return parameter.annotation
