"""How a model runs: the other half of a sweep's point, whose fields are those of five records."""

from numbers import Integral
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from modelbudget.architecture import optimizer_rules, optimizers
from modelbudget.architecture.constraint import Check, Constraint
from modelbudget.architecture.record import Count, Parts, Record, Size
from modelbudget.architecture.run_adapter import Adapter
from modelbudget.architecture.run_rules import rules
from modelbudget.architecture.stored_formats import FORMATS
from modelbudget.common.errors import InputError
from modelbudget.common.files import load_yaml, yaml_files
from modelbudget.common.paths import CONFIGS
from modelbudget.common.patterns import checked_pattern
from modelbudget.common.validation_messages import describe, show, unknown_fields

HALF = ("bfloat16", "float16")
SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
WEIGHTS = ("dtype", *FORMATS, "unknown")
"""Formats of weights (`configs/weight_formats/`)."""
WITH_BLOCKS = {word: known.format for word, known in FORMATS.items() if known.format.block}
WITH_GROUPS = [word for word, known in FORMATS.items() if known.format.groups]
IMPLEMENTATIONS = {path.stem: path for path in yaml_files(CONFIGS / "implementations")}
"""Files of implementations, by name (`modelbudget/catalogue/implementations.py`)."""

Implementation: Any = Literal[*IMPLEMENTATIONS]  # pyrefly: ignore[invalid-literal]
OF_CACHES = load_yaml(CONFIGS / "cache_formats.yaml")
"""Formats of caches, and their names in engines."""
CACHE_DTYPES = ("dtype", *OF_CACHES["formats"], "unknown")
LAYOUTS = ("contiguous", "dynamic", "dynamic-prompt", "static", "paged", "cells")
"""Ways to allocate a cache (`serving/cache_layouts.py`)."""


def in_full(value: Any) -> Any:
    """Return a dtype, also torch's own, by its full name, and a number of NumPy as Python's."""
    kind = type(value).__name__
    if isinstance(value, str) or kind == "dtype":
        name = str(value).removeprefix("torch.")
        return SHORT_DTYPES.get(name.casefold(), name)
    if isinstance(value, Integral) and not isinstance(value, int):
        return int(value)
    return bool(value) if kind in ("bool", "bool_") else value


class Step(Record):
    """One step of training, or one use, whoever computes it."""

    batch: Count = 1
    length: Count = 1024
    target_length: Size = 0
    padding: bool = False
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "float32"
    weights: Literal[WEIGHTS] = "dtype"  # pyrefly: ignore[not-a-type]
    weight_group: Size = Field(
        128,
        description=f"weights: {', '.join(WITH_GROUPS)}: input channels that share a scale; 0: all",
    )
    weight_block: Size = Field(
        0,
        description=f"weights: {', '.join(WITH_BLOCKS)}: numbers in a row that share a scale, of "
        "FP8 output channels; 0: the default of the format",
    )
    weights_of: Literal["library", "layers", "dense", "experts", "all"] = "library"
    kept_in_dtype: str = "none"
    expert_weights: Literal["weights", *FORMATS] = "weights"  # pyrefly: ignore[invalid-literal]
    expert_weight_group: Size = 0
    expert_weight_block: Size = 0
    vocabulary_dtype: Literal["dtype", "float32", "bfloat16", "float16", "int8"] = "dtype"
    autocast: Literal["none", "bfloat16", "float16"] = "none"
    master_weights: bool = False
    gradient_casts: Literal["together", "one_by_one", "accumulated"] = "together"
    optimizer: Literal[optimizers.NAMES] = "adamw"  # pyrefly: ignore[invalid-literal]
    optimizer_rank: Count = 128
    foreach: bool = False
    fused: bool = False
    optimizer_in_backward: bool = False
    backend: Literal["gpu", "cpu"] = "gpu"
    attention_kernel: Literal["math", "flash", "efficient", "written_out"] = "math"
    dropout: bool = False
    dropout_in: Literal["model", "layers", "attention"] = "model"
    recompute: Literal["none", "selective", "selective_op", "full"] = "none"

    constraints: ClassVar[tuple[Check, ...]] = (
        *rules("step"),
        *(
            Constraint(
                f"{of}weights in {tuple(words)}",
                f"{of}weight_{size} = {{{of}weight_{size}:,}}: {of}weights: {{{of}weights}} has no "
                f"{size}s; allowed: 0",
                when=f"{of}weight_{size} > 0",
            )
            for of, size, words in (
                ("expert_", "block", WITH_BLOCKS),
                ("expert_", "group", WITH_GROUPS),
                ("", "block", WITH_BLOCKS),
            )
        ),
        Constraint(
            f"weights in {tuple(word for word in FORMATS if word.startswith('torchao'))}",
            "vocabulary_dtype = 'int8': weights: {weights}; allowed: a format of torchao",
            when="vocabulary_dtype == 'int8'",
        ),
        *(
            Constraint(
                f"{of}weight_block in {tuple(stored.blocks)}",
                f"{of}weight_block = {{{of}weight_block:,}}: {word} has blocks of "
                f"{', '.join(map(str, stored.blocks))}; 0: {zero or stored.block}",
                when=f"{of}weight_block > 0 and {of}weights == '{word}'",
            )
            for of, zero in (("", ""), ("expert_", "weight_block"))
            for word, stored in WITH_BLOCKS.items()
            if stored.blocks
        ),
        optimizer_rules.kernel_is_known,
        optimizer_rules.sizes_are_whole,
        optimizer_rules.parts_are_stepped,
    )


class Devices(Record):
    """How many devices share a model, in which way, and whose bytes count."""

    data_parallel: Parts = 1
    zero: Literal[0, 1, 2, 3] = 0
    reduce_dtype: Literal["dtype", "float32"] = "dtype"
    gradient_buckets: Literal["none", "copied", "views"] = "none"
    data_rank: Literal["first", "middle", "last"] = "first"
    pipeline_parallel: Parts = 1
    pipeline_schedule: Literal["none", "gpipe", "1f1b", "interleaved_1f1b"] = "none"
    virtual_stages: Parts = 1
    n_microbatch: Count = 1
    pipeline_rank: Literal["first", "second", "middle", "last"] = "first"
    tensor_parallel: Parts = 1
    sequence_parallel: bool = False
    context_parallel: Parts = 1
    context_exchange: Literal["all_to_all", "all_gather", "ring"] = "all_to_all"
    expert_parallel: Parts = 1
    routing: Literal["even", "one_device"] = "even"

    constraints: ClassVar[tuple[Check, ...]] = (*rules("devices"),)


class HowComputed(Record):
    """Settings that an `implementation` sets; each can be set alone.

    Fused or written out, held or freed, in which dtype.
    """

    softmax_dtype: Literal["float32", "dtype"] = "float32"
    mask_argument: Literal["held", "saved"] = "held"
    score_cap: Literal["none", "tanh"] = "none"
    logit_cap: Literal["none", "tanh"] = "none"
    implementation: Implementation = "modelbudget"
    norm_kernel: Literal["fused", "written_out", "written_out_exact", "written_out_wide"] = "fused"
    activation_kernel: Literal["fused", "written_out", "written_out_factored", "fused_gate"] = (
        "fused"
    )
    projections: Literal["separate", "packed", "copied", "sliced", "gated_query"] = "separate"
    gate_and_up: Literal["separate", "packed"] = "separate"
    expert_kernel: Literal["scattered", "gathered"] = "scattered"
    rope_tables: Literal["layer", "model", "complex"] = "layer"
    rope_layout: Literal["token", "head"] = "token"
    rope_dtype: Literal["dtype", "float32"] = "dtype"
    embedding_scale: Literal["none", "buffer"] = "none"
    embeddings: Literal["freed", "held"] = "freed"
    cache_growth: Literal["in_place", "concatenated"] = "in_place"
    next_logits: Literal["freed", "float32"] = "freed"
    loss_dtype: Literal["logits", "float32"] = "logits"
    loss_kernel: Literal["torch", "in_place", "fused_linear"] = "torch"
    gradient_accumulation_fusion: bool = False
    gathered_states: Literal["saved", "again"] = "saved"
    embedding_gradient: Literal["whole", "own_rows"] = "whole"
    state_dtype: Literal["dtype", "float32"] = "dtype"
    targets: Literal["given", "shifted"] = "given"
    outputs: Literal["freed", "kept"] = "freed"
    loss_chunks: Count = 1

    constraints: ClassVar[tuple[Check, ...]] = (*rules("implementation"),)


class ServedCache(Record):
    """Format and layout of the cache, and how an engine divides a device's memory."""

    cache_dtype: Annotated[
        Literal[CACHE_DTYPES],  # pyrefly: ignore[not-a-type]
        BeforeValidator(lambda name: OF_CACHES["names"].get(str(name), name)),
    ] = "dtype"
    cache_layout: Literal[LAYOUTS] = "contiguous"  # pyrefly: ignore[not-a-type]
    cache_block: Count = 16
    cached_state_dtype: Literal["dtype", "float32"] = "dtype"
    cached_states: Annotated[int, Field(ge=1, le=2)] = 2
    rope_rows: Count = 1
    cache_unquantised: Size = 0
    utilisation: Annotated[int, Field(ge=1, le=100)] = 92
    batched_tokens: Count = 8192
    sampled_requests: Count = 256
    sampling_kernel: Literal["fused", "sort"] = "fused"
    shared_prefix: Size = 0
    served_adapters: Size = 0
    drafted_tokens: Size = 0
    draft_head: Literal["none", "eagle3"] = "none"
    host_layers: Size = 0
    host_expert_layers: Size = 0
    host_tensors: Annotated[str, AfterValidator(checked_pattern)] = ""
    mla_cache: Literal["latents", "heads"] = "latents"

    constraints: ClassVar[tuple[Check, ...]] = (*rules("cache"),)


class RunConfig(Devices, HowComputed, ServedCache, Adapter, Step):
    """One step of training, or one use, of a model. No field has the name of an architecture's.

    A model completes the fields that are not set: those that it or its source sets, else what a GPU
    runs (`sweeps/device_defaults.py`); `modelbudget.model(name).run(RunConfig(...))` returns them.
    Read alone, such a field has its simplest value: `RunConfig()` is a step in float32, with the
    scores of attention in memory, and AdamW that updates one tensor after another.
    """

    if not TYPE_CHECKING:  # types know the fields

        def __init__(self, *values: Any, **fields: Any):
            """Raise InputError; `model_validate` raises pydantic's ValidationError."""
            if values:
                call = f"RunConfig(): {show(values[0])} has no name"
                raise InputError([f"{call}; allowed: batch=8, length=4096, …"])
            if mistakes := unknown_fields(fields, RunConfig.model_fields):
                raise InputError(mistakes)
            try:
                super().__init__(**{name: in_full(value) for name, value in fields.items()})
            except ValidationError as error:
                raise InputError(describe(error, RunConfig.model_fields)) from None

        __init__.__pydantic_base_init__ = True  # else `model_validate` calls it too

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        """Return the fields that are set: a model completes the others."""
        return [item for item in super().__repr_args__() if item[0] in self.model_fields_set]
