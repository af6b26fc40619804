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
WRITTEN = "<!-- Written by scripts/dev/write_reference.py; edit the code instead. -->"
FIELDS = f"""# Fields

{WRITTEN}

Every field of a sweep file or a named model. Sizes are counts without a unit, lengths are in
tokens. A field without a default must be given; an expression is evaluated where the field is not
given. The last columns have the names in other tools (`configs/field_names.yaml`).
"""
FORMULAS = f"""# Formulas

{WRITTEN}

Parts of a layer first, each with the source of its formulas; then every family, component by
component, as value of one instance × number of instances. Switches are 0 or 1. Where a field is
text, the formulas of its default are shown; for another value, see the code.

Bytes and FLOPs are those of the modules in `modelbudget/modules/`; another implementation of the
same model may save more or fewer tensors.
"""
CONVENTIONS_PAGE = f"""# Counting conventions

{WRITTEN}

What `modelbudget conventions MODEL` shows ([Which N?](how-to/count-as-others-do.md)). FLOPs per
token are of a training step, forward and backward, from the parameters that one token uses;
`length` is that of its sequence. A source that is second hand was read in code or threads that
cite the paper, not in the paper. Each name is also a quantity of a sweep.

One printed table is not reproduced: Hoffmann et al. 2022, Table A4, has 1.03 to 0.99 for the FLOPs
of Appendix F over 6·N in models of 73M to 6.8B, without sequence length and vocabulary. The formula
of Appendix F gives 1.58 to 1.03 for these shapes with 2,048 tokens and a vocabulary of 32,000.
"""
NUMBERS_PAGE = f"""# Published numbers of scaling studies

{WRITTEN}

Each number as printed, and the count of the same shape by its [convention](conventions.md), from
our formulas; the report compares both with the module. To cite a number, cite its source and this
page.
Rounding is half of the last printed digit. Each number was read in its source.
"""
OPTIMIZERS = f"""# Which optimizer fits?

{WRITTEN}

What does an optimizer keep for each parameter, and how much more does its step need?

```sh
modelbudget llama-3-8b --optimizer adamw-8bit --train --fit a100-80gb
modelbudget llama-3-8b --optimizer muon --train
```

The answer names the optimizer and its bytes a parameter. In Python and in sweeps it is the field
`optimizer`; `optimizer_rank` is that of galore and apollo. The table has one row for each file of
`configs/optimizers/`, with the states of Llama 3 8B divided by its 8.03 billion parameters.

**20 bytes a parameter, not 16.** AdamW in float32 has 4 bytes of weights, 4 of gradients and 8 of
moments: 16. With `foreach`, torch's default on a GPU, its step holds one more number for *every*
parameter at once, the square roots of the second moments: 20. `--set fused=true --set
foreach=false` needs none (16); one tensor after another (`foreach=false`) needs twice the largest
tensor and once the one before it. The column *foreach* has the temporary numbers a parameter.

**Small tensors.** bitsandbytes keeps states of fewer than 4,096 numbers in float32, torchao those
and all that are no multiple of its block in the dtype of the parameter. Tables of bitsandbytes are
one for a model, those of torchao one for each state.

**Matrices and the rest.** Muon, GaLore and APOLLO are for hidden matrices; the embedding, the head,
vectors and stacked experts are left to AdamW (of Muon: torch's; of the others: their own). GaLore's
projector is a slice of a whole factor of an SVD, which stays in memory in float32: more than the
paper counts.

**On the host.** `adamw-offload` keeps states of tensors of 4,096 numbers or more in the host's
memory, with a copy of each parameter and its gradient, as torchao's `CPUOffloadOptimizer` does; the
answer names these bytes, and `modelbudget.model(name).host_bytes(run)` returns them. DeepSpeed's
are not known, nor gradients that are freed at once (`offload_gradients`).

**In the backward pass.** `--set optimizer_in_backward=true` updates each parameter when its
gradient is there, and frees the gradient (torch's hooks, as torchtune's `optimizer_in_bwd`). Full
training of Llama 3 8B in bfloat16 with 1 × 1,024 tokens then needs 56.1 GB instead of 80.3. It is
predicted and traced for torch's optimizers without master weights on one device. LOMO and AdaLOMO
do the same by themselves: their gradients and peak have no prediction.

**What is exact.** States equal those of the libraries in 872 recorded rows and in random shapes
(`tests/models/test_optimizers.py`); *not witnessed* says that a row is read from source alone.
Steps of torch's optimizers equal traces of two steps, allocation by allocation, with the operations
that a dispatcher sees: what one of them needs inside (an index of a mask in Rprop) is not counted.
RAdam is that of steps from the sixth on. Where a step has no trace, its phase has no prediction,
and the peak is that of forward and backward pass; a line says so. States that depend on the sizes
of a tensor are refused with `zero`, `tensor_parallel`, `expert_parallel` and stages of a pipeline.
torch's LBFGS and SparseAdam are not known.

**Add one** as a file in `configs/optimizers/LIBRARY/`: its name is that of the file. `of` says
which tensors a part is of, `states` what it keeps for each, `as_in` which other optimizer has the
rest, and `step` the temporary tensors, in the language of `modelbudget/memory/step_program.py`. The
tests find it, and `scripts/dev/record_optimizer_states.py` records rows of a library.

"""
OF_PART = ("parameters", "saved", "flops", "flops_backward", "cache")
"""Functions of a part whose values are shown."""
OF_FAMILY = ("parameters", *sorted(OF_TRAINING | OF_INFERENCE))


def fields() -> str:
    """Return docs/fields.md."""
    kinds = {"Run settings": [RunConfig], "Architectures": sorted(families().values(), key=_name)}
    return FIELDS + "".join(f"\n## {title}\n\n{_fields_of(kind)}" for title, kind in kinds.items())


def formulas() -> str:
    """Return docs/formulas.md."""
    parts = (_part(name, one) for name, one in all_parts().items())
    known = (family for family in sorted(families().values(), key=_name) if family.has_formula)
    return "\n".join([FORMULAS, *parts, *map(_family, known)])


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
    return CONVENTIONS_PAGE + "".join(tables)


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
    return NUMBERS_PAGE + "".join(
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
        f"{OPTIMIZERS}{_table(titles, rows)}\n## Sources\n\n"
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


STORED = f"""# Formats of weights

{WRITTEN}

What `weights` may be: `modelbudget llama-3-8b --weights bnb-4bit`, or a config.json with a
`quantization_config`. A format is a list of tensors in `configs/weight_formats/`, one library a
file, which the prediction and the torch module both read. *Bytes* are those of a matrix of 4,096
by 4,096 in bfloat16, without a bias, which has {2 * 4096**2:,} in the dtype; *file* has those of
its tensors in a file where they differ.

A format converts what its library converts: `linear` layers of the layers, `gates` among them (of
shared experts; β and decay of Gated DeltaNet), stacked `experts`, `conv1d` of transformers'
GPT-2, and of MLX the `vocabulary` (embedding and head) and `routers`, for which models with experts
are refused. What it does not convert stays in the dtype, as norms do; `weights_of`
chooses other matrices, `weight_block` and `weight_group` other blocks and groups. *Witness* says
what the bytes were compared with: layers that the library quantised or built
(`tests/golden/stored_matrices.csv`, `quantised_models.json`), or nothing but its source; of AWQ
and AutoGPTQ, published files are met to the byte
(`tests/models/test_published_quantised_files.py`).

*Product* is what a matrix product reads: a `copy` of the matrix in the dtype, the `stored`
tensors, or what is `unknown`. Peaks count a copy in any case, freed after each product, so that
they are never too low for it.
"""


def weight_formats() -> str:
    """Return docs/weight-formats.md."""
    names = list(dict.fromkeys(known.library.source for known in FORMATS.values()))
    libraries = {one: [w for w, k in FORMATS.items() if k.library.source == one] for one in names}
    return STORED + "".join(_library(words) for words in libraries.values())


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


JSON_PAGE = f"""# What --json prints

{WRITTEN}

One object for each command, with exact integers and a `version`, now {JSON_VERSION}. Within a
version keys are only added; one that is renamed, removed or means something else makes a new
version. The [JSON Schema](assets/json-output.schema.json) has one definition for each command; the
tests validate what the commands print with it, and allow no key that it lacks. `null` stands for
what does not apply. `lock`, `check` and `sweep` write files: `budget.lock`, Markdown and
[results](results.md).
"""


def json_output() -> str:
    """Return docs/json-output.md."""
    parts: dict[str, type[BaseModel]] = {}
    pages = [_of_output(kind, parts) for kind in OUTPUTS]
    done: set[str] = set()
    while left := parts.keys() - done:
        for name in sorted(left):
            done.add(name)
            pages.append(_of_output(parts[name], parts))
    return JSON_PAGE + "".join(pages)


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
