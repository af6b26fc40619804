"""Options that several subcommands share, and the run settings that they make."""

import re
from typing import Annotated, Any, Literal

import typer

from modelbudget import __version__
from modelbudget.common.errors import InputError
from modelbudget.common.paths import CONFIGS


def version(wanted: bool) -> None:
    """Print the version and end, if that is wanted."""
    if wanted:
        typer.echo(f"modelbudget {__version__}")
        raise typer.Exit


def known_names(incomplete: str) -> list[str]:
    """Return the names of published models that begin so, for a shell's completion."""
    from modelbudget.catalogue.named_models import Catalogue

    bases = Catalogue(CONFIGS / "models").bases.values()
    return [base.name for base in bases if base.model and base.name.startswith(incomplete)]


def settings(
    given: list[str] | None,
    batch: str | None = None,
    length: str | None = None,
    dtype: str | None = None,
    implementation: str | None = None,
    weights: str | None = None,
    adapter: str | None = None,
    rank: str | None = None,
    optimizer: str | None = None,
) -> dict[str, Any]:
    """Return the fields that the command line sets. Raises InputError."""
    named = {
        "batch": batch and _count("batch", batch),
        "length": length and _count("length", length),
        "dtype": dtype,
        "implementation": implementation,
        "weights": weights and _format(weights),
        "adapter": adapter,
        "adapter_rank": rank and _value(rank),
        "optimizer": optimizer,
    }
    settings_by_name: dict[str, Any] = {
        name: value for name, value in named.items() if value is not None
    }
    for text in (part for texts in given or () for part in _SEVERAL.split(texts)):
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError([f"--set {text}: no value; allowed: FIELD=VALUE (docs/fields.md)"])
        settings_by_name[name] = _value(value)
    return settings_by_name


_SEVERAL = re.compile(r",\s*(?=\w+=)")
"""Between the fields of one `--set`, as the table of changes prints them."""
_WHOLE = re.compile(r"[+-]?(?=.{1,100}$)[0-9]+(_[0-9]+)*")


def _value(text: str) -> bool | int | str:
    if text.casefold() in ("true", "false"):
        return text.casefold() == "true"
    return int(text) if _WHOLE.fullmatch(text) else text


def _count(option: str, text: str) -> bool | int | str:
    """Return a value. Raises InputError for 32k: some mean 32,768 by it, others 32,000."""
    if thousands := re.fullmatch(r"([0-9]{1,9})k", text.casefold()):
        number = int(thousands[1])
        raise InputError([f"--{option} {text}: write {number * 1024} or {number * 1000}"])
    return _value(text)


def _format(text: str) -> str:
    """Return a format of weights. Raises InputError for words that llama.cpp or QLoRA has."""
    if re.fullmatch(r"i?q\d_\w+", text.casefold()):
        of_file = f"--file gguf --format {text.upper()}"
        raise InputError([f"--weights {text}: of GGUF files; allowed: {of_file}"])
    if text.casefold() == "nf4":
        raise InputError([f"--weights {text}: write bnb-4bit or bnb-4bit-double"])
    return text


def other_name(error: Any) -> str | None:
    """Return what to write for an option of another tool, or a word too many; None if unknown."""
    if extra := re.search(r"extra arguments?(?:\(s\))? \((.*)\)", error.format_message()):
        if re.fullmatch("[kMGT]i?B", extra[1], re.IGNORECASE):
            return f"{extra[1]}: a unit alone; allowed: without a space, such as 24{extra[1]}"
        model = error.ctx.params.get("name") if error.ctx else None
        return model and f"{extra[1]}: too many; MODEL = {model!r} was read before"
    if not hasattr(error, "possibilities"):  # that there is no such option
        return None
    from modelbudget.architecture.adapter_methods import OF_LAYERS
    from modelbudget.architecture.run_config import RunConfig
    from modelbudget.common.suggestions import SAME_WORD, nearest
    from modelbudget.families import families

    name = error.option_name.lstrip("-").replace("-", "_")
    ours = [option for parameter in error.ctx.command.params for option in parameter.opts]
    wanted = {option.lstrip("-"): option for option in ours if option.startswith("--")}
    if "set" in wanted:
        known = (RunConfig, *families().values())
        fields = {field: f"--set {field}=…" for of in known for field in of.model_fields}
        wanted = fields | wanted
    near = [wanted[one] for one in nearest(name, wanted, 1, SAME_WORD)]
    if name in OF_LAYERS and "adapter" in wanted:
        near = [f"--adapter {name}"]
    elif name == "qlora":
        near = ["--adapter lora --weights bnb-4bit"]
    return f"{error.option_name}: no such option; allowed: {near[0]}" if near else None


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
Batch = Annotated[str | None, typer.Option(metavar="N", help="Sequences in one step.")]
Length = Annotated[str | None, typer.Option(metavar="N", help="Tokens in each sequence.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, …", show_default=False)]
Implementation = Annotated[
    str | None,
    typer.Option(help="Whose code computes: modelbudget, transformers, …", show_default=False),
]
Weights = Annotated[
    str | None,
    typer.Option(help="Format of weights: awq, bnb-4bit-double, …", show_default=False),
]
Adapter = Annotated[
    str | None, typer.Option(help="Train an adapter alone: lora, dora, vera, …", show_default=False)
]
Rank = Annotated[str | None, typer.Option(metavar="N", help="With --adapter: its rank.")]
Optimizer = Annotated[
    str | None,
    typer.Option(help="adamw, adamw-8bit, muon, … (docs/optimizers.md)", show_default=False),
]
OnlyTraining = Annotated[bool, typer.Option("--train", help="Only training.")]
OnlyInference = Annotated[bool, typer.Option("--inference", help="Only inference.")]
Given = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Any field of docs/fields.md; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with exact numbers.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV with exact numbers.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print tables for pasting.")]
OwnFile = Annotated[
    str | None,
    typer.Option(
        "--accelerators",
        metavar="FILE",
        help="With --fit: a file with names and memory of your own.",
    ),
]
Devices = Annotated[
    int,
    typer.Option(
        help="Devices that share the model: training by zero: 3, inference by tensor_parallel.",
        min=1,
    ),
]
FitTo = Annotated[
    str | None, typer.Option("--fit", metavar="ACCELERATOR", help="Does it fit? h100-80gb, 24GB, …")
]
ServeOn = Annotated[
    str | None,
    typer.Option(
        "--serve", metavar="ACCELERATOR", help="How many requests does it serve? h100-80gb, 24GB, …"
    ),
]
DraftOf = Annotated[
    str | None,
    typer.Option("--draft", metavar="MODEL", help="With --serve: a draft model, or mtp."),
]
Reserved = Annotated[
    str | None,
    typer.Option(
        "--reserve", metavar="SIZE", help="With --fit or --serve: bytes kept free, 2GB, …"
    ),
]
TrainerOf = Annotated[
    str | None,
    typer.Option(
        "--trainer", metavar="dpo|grpo", help="A step of TRL's trainer, with all of its models."
    ),
]
ReferenceOf = Annotated[
    str | None,
    typer.Option("--reference", metavar="MODEL", help="With --trainer: a model, copy, or none."),
]
RewardOf = Annotated[
    str | None,
    typer.Option("--reward", metavar="MODEL", help="With --trainer grpo: the reward model."),
]
AnswerOf = Annotated[
    int | None,
    typer.Option("--answer", min=1, help="Of --trainer: tokens of a text that are its answer."),
]
EngineShare = Annotated[
    float | None,
    typer.Option("--engine-share", metavar="SHARE", help="Of --trainer grpo: vLLM's, of the card."),
]
EngineSleeps = Annotated[
    bool, typer.Option("--engine-sleeps", help="With --engine-share: while others compute.")
]
FileOf = Annotated[
    Literal["gguf"] | None,
    typer.Option("--file", help="The file that llama.cpp writes of the model, with --format."),
]
FormatOf = Annotated[
    str | None, typer.Option("--format", metavar="FORMAT", help="With --file: Q4_K_M, IQ4_XS, …")
]
HasImatrix = Annotated[
    bool, typer.Option("--imatrix", help="With --file: quantised with an importance matrix.")
]
