"""Write the generated pages of docs/ (`PAGES`) from code and configs: `make reference`.

A test keeps both in step with the code.
"""

import inspect
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import polars as pl
import sympy
from pydantic import BaseModel

import modelbudget as mb
from modelbudget.api.frames import JSON_VERSION
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.counting_conventions import CONVENTIONS, FLOPS, PARAMETERS
from modelbudget.architecture.evaluators import symbols
from modelbudget.architecture.optimizers import NAMES, OptimizerData, optimizer_named
from modelbudget.architecture.record import Record
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import ONE_DEVICE
from modelbudget.architecture.stored_formats import FORMATS
from modelbudget.architecture.terms import is_peak
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.catalogue.published_scaling import Ladder
from modelbudget.common.paths import CONFIGS, MODELS
from modelbudget.common.suggestions import field_names
from modelbudget.compare.scaling_studies import NO_COUNT, Row, rows
from modelbudget.components.contract import Part
from modelbudget.components.layer import all_parts
from modelbudget.components.weight_formats import Matrix, matrix_bytes
from modelbudget.families import families
from modelbudget.memory.step_program import peaks_of
from modelbudget.predict.predict import predict
from modelbudget.sweeps.device_defaults import DECIDED
from modelbudget.sweeps.expand import expand
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.quantity_names import OF_INFERENCE, OF_TRAINING
from scripts.dev.answer_schemas import OUTPUTS, schema

DOCS = Path(__file__).parents[2] / "docs"
INTRODUCTIONS = Path(__file__).with_name("reference")
"""What is written by hand of each page: what stands before its tables."""
WRITTEN = "<!-- Written by scripts/dev/write_reference.py: edit reference/ there, or the code. -->"
OF_PART = ("parameters", "saved", "flops", "flops_backward", "cache")
"""Functions of a part whose values are shown."""
OF_FAMILY = ("parameters", *sorted(OF_TRAINING | OF_INFERENCE))


def _intro(page: str, **numbers: int) -> str:
    text = (INTRODUCTIONS / page).read_text(encoding="utf-8")
    return text.format(written=WRITTEN, **numbers)


def fields() -> str:
    """Return docs/fields.md."""
    kinds = {"Run settings": [RunConfig], "Architectures": sorted(families().values(), key=_name)}
    return _intro("fields.md") + "".join(
        f"\n## {title}\n\n{_fields_of(kind)}" for title, kind in kinds.items()
    )


def formulas() -> str:
    """Return docs/formulas.md."""
    parts = (_part(name, one) for name, one in all_parts().items())
    known = (family for family in sorted(families().values(), key=_name) if family.has_formula)
    return "\n".join([_intro("formulas.md"), *parts, *map(_family, known)])


def _name(kind: type[Record]) -> str:
    return kind.name()


def _fields_of(kinds: Sequence[type[Record]]) -> str:
    """One row for each field; families that describe it differently have rows of their own."""
    rows: dict[tuple, list[str]] = {}
    for kind in kinds:
        for name, field in kind.model_fields.items():
            default = kind.derivations().get(name) or DECIDED.get(name) or _default(field)
            row = name, _values(field.annotation), default, field.description or ""
            rows.setdefault(row, []).append(kind.name())
    table = [
        (f"`{name}`", values, default, text, *_elsewhere(name), _families(of, kinds))
        for (name, values, default, text), of in sorted(rows.items())
    ]
    titles = ("field", "values", "default", "meaning", "Hugging Face", "Megatron-LM", "families")
    return _table(titles if len(kinds) > 1 else titles[:-1], table)


def _families(of: list[str], kinds: Sequence[type[Record]]) -> str:
    return "all" if len(of) == len(kinds) else ", ".join(of)


def _default(field: Any) -> str:
    if field.is_required():
        return ""
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


def _values(annotation: Any) -> str:
    choices = get_args(annotation)
    if choices and all(isinstance(choice, str) for choice in choices):
        return ", ".join(choices)
    return {bool: "true, false", int: "integer"}.get(annotation, "text")


def _elsewhere(name: str) -> tuple[str, ...]:
    tools = field_names().get(name, {})
    return tuple(", ".join(tools.get(tool, [])) for tool in ("huggingface", "megatron"))


def _part(word: str, part: Part) -> str:
    """The functions of a mixer or feed-forward part: their docstrings and values."""
    a, r = _symbols(families()["decoder"]), _symbols(RunConfig)
    sections = [f"## Part: {word}", "", inspect.cleandoc(part.__doc__ or "")]
    for name in OF_PART:
        if function := getattr(part, name, None):
            arguments = (a,) if name == "parameters" else (a, r)
            values = {leaf or word: value for leaf, value in function(*arguments).items()}
            sections += ["", f"### {word}: {name}", "", inspect.cleandoc(function.__doc__ or "")]
            sections += ["", _table(("component", "formula"), _rows(values))]
    return "\n".join(sections)


def _family(family: type[Architecture]) -> str:
    a, r = _symbols(family), _symbols(RunConfig)
    sections = [f"## Family: {family.name()}", "", inspect.cleandoc(family.__doc__ or "")]
    for quantity in OF_FAMILY:
        known = quantity == "parameters" or family.has_formula_for(quantity, a, r) != 0
        if known and not is_peak(quantity):
            function = getattr(family, quantity)
            terms = function(a) if quantity == "parameters" else function(a, r)
            values = {n: (term.each, term.instances) for n, term in terms.items() if term.total}
            sections += ["", f"### {family.name()}: {quantity}", ""]
            sections += [inspect.cleandoc(function.__doc__ or ""), ""]
            sections += [_table(("component", "each", "instances"), _rows(values))]
    return "\n".join(sections)


def _symbols(kind: type[Record]) -> Any:
    """Symbols for numbers; text at its default, or the first that is allowed."""
    text = {name: _text(kind.model_fields[name]) for name in kind.categorical()}
    return symbols.namespace(kind, text, ONE_DEVICE if kind is RunConfig else None)


def _text(field: Any) -> str:
    return get_args(field.annotation)[0] if field.is_required() else field.default


def _rows(values: dict[str, Any]) -> Iterator[tuple]:
    for name, value in values.items():
        several = value if isinstance(value, tuple) else (value,)
        texts = tuple(_written(one) for one in several)
        if texts[0] != "`0`":
            yield f"`{name}`", *texts


def _written(value: Any) -> str:
    """An expression in one line; `[size > 0]` is 1 where the size is not 0."""
    shown = sympy.sympify(value).replace(
        lambda part: isinstance(part, sympy.Piecewise),
        lambda part: sympy.Symbol(f"[{part.args[0].cond}]"),
    )
    return f"`{str(shown).replace('**', '^').replace('|', '∣')}`"


def _table(titles: tuple[str, ...], rows: Any) -> str:
    lines = [titles, ["---"] * len(titles), *(row[: len(titles)] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def conventions() -> str:
    """Return docs/conventions.md."""
    titles = ("convention", "counts", "source")
    tables = (
        f"\n## {unit[0].upper()}{unit[1:]}\n\n"
        + _table(titles, ((f"`{c.name}`", c.rule, c.source) for c in CONVENTIONS if c.unit == unit))
        for unit in (PARAMETERS, FLOPS)
    )
    return _intro("conventions.md") + "".join(tables)


def published_numbers() -> str:
    """Return docs/published-numbers.md."""
    tables = []
    for name in ("published-ladders", "zoo"):
        points = points_table(expand(CONFIGS / "sweeps" / f"{name}.yaml", Catalogue(MODELS)).points)
        counted = points.select("label", "architecture", "run").join(
            predict(points, ["parameters"]), on=["architecture", "run"], how="left"
        )
        tables.append((points, counted.with_columns(measured=pl.lit(None, pl.Int64))))
    found = rows(CONFIGS / "published_scaling.yaml", tables)
    ladders = {row.ladder.title: row.ladder for row in found}
    titles = ("model", "convention", "printed", "counted", "verdict", "note")
    return _intro("published-numbers.md") + "".join(
        f"\n## {title}\n\nSource: {ladder.source}.{_about(ladder)}\n\n"
        + _table(titles, (_printed(row) for row in found if row.ladder.title == title))
        for title, ladder in ladders.items()
    )


def optimizer_page() -> str:
    """Return docs/optimizers.md."""
    model = mb.model("llama-3-8b")
    rows = []
    for name in NAMES:
        one = optimizer_named(name)
        each = (
            f"{model.predict('optimizer_bytes', {'optimizer': name, 'dtype': dtype}).total / n:.4g}"
            for dtype in ("bfloat16", "float32")
            for n in [model.parameters().total]
        )
        kernels = [kernel for kernel in ("single", "foreach", "fused") if one.has_kernel(kernel)]
        title = f"{one.title} ({one.library})"
        rows.append((f"`{name}`", title, *each, _of_step(one), ", ".join(kernels), one.witness))
    titles = (
        "optimizer", "what it is", "bytes a parameter, bfloat16", "float32", "foreach",
        "traced steps", "compared with",
    )  # fmt: skip
    sources = ((f"`{name}`", optimizer_named(name).source) for name in NAMES)
    return (
        f"{_intro('optimizers.md')}{_table(titles, rows)}\n## Sources\n\n"
        f"{_table(('optimizer', 'source'), sources)}"
    )


def _of_step(optimizer: OptimizerData) -> str:
    """Return how many temporary numbers a parameter a step with foreach needs, where a formula
    has them.
    """
    program = optimizer.parts[0].step.get("foreach")
    if program is None or not optimizer.follows_numbers:
        return ""
    peaks = peaks_of(program, is_of_all=True)
    return "" if peaks is None else str(max((cost.of_number for cost, _ in peaks), default=0))


def _about(ladder: Ladder) -> str:
    notes = "; ".join(filter(None, (ladder.reason, ladder.note)))
    return f" {notes[0].upper()}{notes[1:]}." if notes else ""


def _printed(row: Row) -> tuple[str, ...]:
    off = f", {row.error:+.1%}" if row.verdict == NO_COUNT else ""
    numbers = (f"{row.printed.published:,}", f"{row.predicted:,}")
    name = f"`{row.convention.name}`"
    return row.printed.model, name, *numbers, row.verdict + off, row.printed.note or ""


def weight_formats() -> str:
    """Return docs/weight-formats.md."""
    names = list(dict.fromkeys(known.library.source for known in FORMATS.values()))
    libraries = {one: [w for w, k in FORMATS.items() if k.library.source == one] for one in names}
    return _intro("weight-formats.md", in_dtype=2 * 4096**2) + "".join(
        _library(words) for words in libraries.values()
    )


def _library(words: list[str]) -> str:
    library = FORMATS[words[0]].library
    titles = ("`weights`", "bytes", "file", "block", "group", "a matrix must have", "witness")
    about = (
        f"\n## {library.library}\n\n{library.source.strip()}. Converts "
        f"{', '.join(library.converts)}; product: {library.product}.\n\n"
    )
    return about + _table(titles, (_stored(word) for word in words))


def _stored(word: str) -> tuple[str, ...]:
    known = FORMATS[word]
    stored, matrix = known.format, Matrix("", 4096, 4096)
    run = RunConfig.model_validate({"weights": word, "weights_of": "layers", "dtype": "bfloat16"})
    in_memory, in_file = (matrix_bytes(matrix, run, is_file) for is_file in (False, True))
    differs = in_file != in_memory and known.library.file_is_known
    return (
        f"`{word}`",
        f"{in_memory:,}",
        f"{in_file:,}" if differs else "" if known.library.file_is_known else "not known",
        f"{stored.block}" if stored.block else "",
        f"{run.weight_group}" if stored.groups else "",
        f"`{stored.needs}`" if stored.needs else "",
        known.library.witness if known.is_witnessed else "from source, not witnessed",
    )


def json_output() -> str:
    """Return docs/json-output.md."""
    parts: dict[str, type[BaseModel]] = {}
    pages = [_of_output(kind, parts) for kind in OUTPUTS]
    done: set[str] = set()
    while left := parts.keys() - done:
        for name in sorted(left):
            done.add(name)
            pages.append(_of_output(parts[name], parts))
    return _intro("json-output.md", version=JSON_VERSION) + "".join(pages)


def _of_output(kind: type[BaseModel], parts: dict[str, type[BaseModel]]) -> str:
    """Return the section of an object, and note the objects that are in it."""
    lines = ["| key | type | |", "| --- | --- | --- |"]
    for name, field in kind.model_fields.items():
        text = _type_in_words(field.annotation, parts)
        if not field.is_required():
            text = f"{text.removesuffix(' or null')}; only there where it applies"
        lines.append(f"| `{name}` | {text} | {field.description or ''} |")
    about = inspect.cleandoc(kind.__doc__ or "")
    return f"\n## {kind.__name__}\n\n{about}\n\n" + "\n".join(lines) + "\n"


def _type_in_words(kind: Any, parts: dict[str, type[BaseModel]]) -> str:
    of = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        parts[kind.__name__] = kind
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if get_origin(kind) is list:
        return f"list of {_type_in_words(of[0], parts)}"
    if get_origin(kind) is dict:
        return f"object of {_type_in_words(of[1], parts)} by name"
    if get_origin(kind) is Literal:
        return " or ".join(f"`{one}`" for one in of)
    if of:
        return " or ".join(dict.fromkeys(_type_in_words(one, parts) for one in of))
    words = {int: "integer", str: "text", bool: "boolean", float: "number", type(None): "null"}
    return words.get(kind, "any")


def json_schema() -> str:
    """Return docs/assets/json-output.schema.json."""
    return json.dumps(schema(), indent=2) + "\n"


PAGES = {
    "json-output.md": json_output,
    "assets/json-output.schema.json": json_schema,
    "fields.md": fields,
    "weight-formats.md": weight_formats,
    "conventions.md": conventions,
    "published-numbers.md": published_numbers,
    "optimizers.md": optimizer_page,
}
BUILT = {"formulas.md": formulas}
"""Pages that are not tracked: `make docs` builds them."""

if __name__ == "__main__":
    for page, text in (PAGES | BUILT).items():
        (DOCS / page).write_text(text(), encoding="utf-8")
