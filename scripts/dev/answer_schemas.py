"""What `--json` prints, command by command: the one place from which schema and page are made.

Numbers are exact integers. Within a version keys are only added; a key that is renamed, removed or
means something else makes a new version.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field
from pydantic.json_schema import models_json_schema

from modelbudget.api.explained import Verdict
from modelbudget.api.frames import JSON_VERSION
from modelbudget.catalogue.memory_margins import Grade
from modelbudget.common.strict import Strict
from modelbudget.predict.serve import How

Plain = bool | int | float | str | None
"""Value of a field of the architecture or the run (docs/fields.md)."""


class Printed(Strict):
    """What every command prints."""

    version: Literal[1] = Field(description="of this description")


class OfQuantity(Strict):
    """One quantity: its total, and where it goes."""

    total: int = Field(description="of a peak, the largest phase")
    source: str = Field(description="formula, or what was traced")
    components: dict[str, int] = Field(description="by component; of a peak, by phase")


class ClassFits(Strict):
    """Whether the class of transformers fits that leads the answer."""

    implementation: str
    needed: int = Field(description="bytes")
    fits: bool
    grade: Grade


class OfChange(Strict):
    """Settings by which a run needs less."""

    text: str
    fields: dict[str, bool | int | str]
    needed: int = Field(description="bytes of the peak with them")
    saves: int = Field(description="bytes")
    alters: bool = Field(description="whether something else is trained, or other weights")
    largest: dict[str, int] | None
    largest_with_margins: dict[str, int] | None


class OfFit(Strict):
    """Whether a run fits an accelerator, and the largest that does."""

    purpose: Literal["training", "inference"]
    settings: str
    accelerator: str
    memory: int = Field(description="bytes of a device")
    memory_source: str
    devices: int
    sharing: dict[str, int] = Field(description="settings by which devices share the model")
    needed: int = Field(description="bytes of a device")
    fits: bool = Field(description="at least tightly")
    grade: Grade
    reserve: int = Field(description="bytes for what is no tensor")
    reserve_source: str
    worst_ratio: float = Field(description="worst published reading / prediction")
    worst_ratio_source: str
    largest: dict[str, int] = Field(description="largest value by field")
    largest_with_margins: dict[str, int]
    largest_with_expandable_segments: dict[str, int]
    largest_of_class: dict[str, int]
    largest_of_class_with_margins: dict[str, int] = Field(
        description="where the class leads the answer"
    )
    not_solved: str | None = Field(description="why nothing is solved")
    changes: list[OfChange]
    together: OfChange | None
    layouts: list[dict[str, Any]] | None = Field(
        None,
        description="all layouts of several devices; columns as in SWEEP/layouts.parquet, and "
        "largest_batch and largest_length of those that are offered, null of others",
    )
    of_class: ClassFits | None


class PartOfFile(Strict):
    """A part of a checkpoint held against the formula."""

    model: str
    part: str
    quantity: str
    predicted: int
    stored: int
    difference: int
    tensors: str


class NameInFile(Strict):
    """A tensor whose name or shape is not that of the class."""

    name: str
    of_class: list[int] | None
    stored: list[int] | None


class OfModel(Strict):
    """Predictions of one model."""

    model: str
    label: str
    family: str
    implementation: str = Field(description="whose memory and FLOPs these are")
    source: str
    architecture: dict[str, Any] = Field(description="fields of docs/fields.md")
    run: dict[str, Plain] = Field(description="fields of docs/fields.md")
    quantities: dict[str, OfQuantity]
    active_parameters: int | None = Field(
        description="of a token, its embedding included; null without experts"
    )
    missing: dict[str, str] = Field(description="the reason of each quantity without a value")
    notes: list[str]


class Show(Printed, OfModel):
    """`modelbudget MODEL --json`, with `--fit`, and of a folder or file with weights."""

    fit: list[OfFit] | None = Field(None, description="with --fit")
    checkpoint: list[PartOfFile] | None = Field(None, description="of weights")
    tensors: list[NameInFile] | None = Field(None, description="of weights, where they differ")


class TermOfDevice(Strict):
    """Bytes of a device that are not left for the cache."""

    name: str
    n_bytes: int
    how: How
    note: str
    least: int | None = Field(description="of a bounded term")


class Serve(Printed):
    """`modelbudget MODEL --serve ACCELERATOR --json`; bytes are of one device."""

    purpose: Literal["serve"]
    model: str
    accelerator: str
    memory: int
    memory_source: str
    devices: int
    replicas: int
    tensor_parallel: int
    data_parallel: int = Field(description="replicas that share experts")
    expert_parallel: int
    context_parallel: int
    dtype: str
    weights: str = Field(description="their format, or that of a file; dtype: in the dtype")
    cache_dtype: str
    usable: int = Field(description="bytes: the memory × utilisation")
    terms: list[TermOfDevice]
    cache_bytes: int
    block_bytes: int | None
    block_tokens: int | None
    blocks: int | None
    request_bytes: int
    request_blocks: int | None
    shared_bytes: int
    length: int = Field(description="tokens of a request")
    target_length: int = Field(description="of its target, where those are a source's; 0: length")
    requests: int = Field(description="of all devices")
    most_requests: int = Field(description="where each bounded term is at its least")
    largest_length: int = Field(description="tokens")
    notes: list[str] = Field(description="what a reader must know of the run")
    what_helps: list[str] = Field(
        description="where no request fits: options with each of which alone one does"
    )


class PartOfTrainer(Strict):
    """Bytes of one model of a trainer."""

    name: str
    n_bytes: int
    note: str
    is_moment: bool = Field(description="whether they are there at one moment of a step alone")


class Trainer(Printed):
    """`modelbudget MODEL --trainer dpo --json`."""

    model: str
    trainer: Literal["dpo", "grpo"]
    settings: str
    parts: list[PartOfTrainer]
    needed: int = Field(description="bytes of all parts, of the moments the largest")
    accelerator: str | None = Field(description="with --fit")
    memory: int | None
    grade: Grade | None
    largest_batch: int | None = Field(description="that fits without margins")
    changes: list[OfChange]
    together: OfChange | None
    note: str
    notes: list[str] = Field(description="what PEFT adapts otherwise of the policy's class")


class TensorOfFile(Strict):
    """One tensor of a GGUF file."""

    model: str
    format: str
    tensor: str
    shape: list[int]
    component: str
    type: str
    bytes: int


class GgufFile(Printed):
    """`modelbudget MODEL --file gguf --format FORMAT --json`."""

    model: str
    format: str
    imatrix: bool
    tensor_bytes: int
    header_bytes_without_metadata: int
    bits_per_parameter: float
    tensors: list[TensorOfFile]


class Compare(Printed):
    """`modelbudget compare A B --json`."""

    models: list[OfModel]


class OfConvention(Strict):
    """A count by one convention."""

    model: str
    convention: str
    unit: str
    value: int | float
    share: float | None = Field(description="of all parameters, or of the executed FLOPs")
    source: str
    rule: str
    reference: str


class Conventions(Printed):
    """`modelbudget conventions MODEL --json`."""

    conventions: list[OfConvention]


class OfComparison(Strict):
    """A component of a quantity; keys that `measure` adds are columns of docs/results.md."""

    model_config = Strict.model_config | ConfigDict(extra="allow")
    component: str
    quantity: str
    predicted: int | None
    measured: int | None
    difference: int | None
    agrees: bool | None
    method: str | None = Field(description="the device")
    failure: str | None


class Measure(Printed):
    """`modelbudget measure MODEL --json`."""

    comparison: list[OfComparison]


class PublishedModel(Strict):
    """A published model."""

    name: str
    parameters: int
    label: str
    family: str
    peak: int | None = Field(None, description="with `--fit`: bytes of the step on the device")
    grade: Grade | None = Field(None, description="with `--fit`")


class Models(Printed):
    """`modelbudget models --json`; with `--fit` the models that fit, the largest first."""

    models: list[PublishedModel]


class OfNumber(Strict):
    """One number of a file."""

    name: str
    printed: str
    explained: str = Field(description="the terms of the formula")
    verdict: Verdict
    n_bytes: int = Field(description="of the number, 0 if it is none of bytes")
    unexplained: int = Field(description="of it, that no term is about")
    place: int = Field(description="line of the file, 0 if it has none")


class Explain(Printed):
    """`modelbudget explain FILE --json`."""

    file: str
    about: str
    lines: list[OfNumber]
    asked: list[str] = Field(description="what the file does not say, and how to say it")
    next_step: str = Field(description="a command to type next; may be empty")


class Seen(Strict):
    """How a value was seen, and where."""

    how: Literal["class", "trace", "module", "recorded", "published"]
    source: str


class OfVector(Strict):
    """One size of one configuration."""

    name: str
    model: str | None
    config: dict[str, Any] | None = Field(description="a config.json")
    quantity: str
    implementation: str
    run: dict[str, Plain]
    value: int
    unit: str
    witness: list[Seen]


class Vectors(Printed):
    """`modelbudget vectors --json`, and `configs/vectors.json` with configs by name."""

    vectors: list[OfVector]


OUTPUTS: tuple[type[Printed], ...] = (
    Show, Serve, Trainer, GgufFile, Compare, Conventions, Measure, Models, Explain, Vectors,
)  # fmt: skip


def schema() -> dict[str, Any]:
    """Return the JSON Schema of all outputs; `$defs` has one for each command."""
    _, definitions = models_json_schema([(kind, "validation") for kind in OUTPUTS])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"modelbudget --json, version {JSON_VERSION}",
        "anyOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in OUTPUTS],
        **definitions,
    }
