"""How a model runs: batch, precision, optimizer, backend. The other half of a sweep's point."""

from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.operations import ceil_div, positive
from modelbudget.architecture.record import Count, Parts, Record, Size
from modelbudget.common.files import yaml_files
from modelbudget.common.paths import CONFIGS

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
HALF = ("bfloat16", "float16")
FULL = ("float32", "float64")

WEIGHTS = (
    "dtype", "awq", "gptq-4bit", "gptq-8bit", "bnb-8bit", "bnb-4bit", "bnb-4bit-double",
    "fp8-block", "fp8-channel", "int8-channel", "int4-group", "mxfp4", "unknown",
)  # fmt: skip
"""Formats of weights (`components/weight_formats.py`)."""
OF_QUANTISED = ("parameter_bytes", "cache_bytes", "flops_forward", "flops_decode")
"""Quantities of a run that quantised weights leave defined. Gradients, optimizer states and
temporary tensors depend on adapters and kernels.
"""

OF_AUTOCAST = (
    "parameter_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "flops_forward",
    "flops_backward",
    "flops_decode",
)
"""Quantities of a run that autocast does not change."""

INDEX = 8
"""Bytes of a token or of a position: torch's indices are 64-bit integers."""

ONE_DEVICE = {"tensor_parallel": 1, "sequence_parallel": 0}
"""Settings of a model that is not divided, for formulas that are shown."""
IMPLEMENTATIONS = {path.stem: path for path in yaml_files(CONFIGS / "implementations")}
"""Files of implementations, by name (`modelbudget/catalogue/implementations.py`)."""
MASKS = ("alibi", "buckets", "relative")
"""Positions that add to the scores, which flash attention never writes out."""


Implementation: Any = Literal[*IMPLEMENTATIONS]

_NO_STAGES = "pipeline_schedule = '{pipeline_schedule}'"
_PIPELINE = (
    Constraint(
        "pipeline_parallel > 1",
        f"{_NO_STAGES}: pipeline_parallel = {{pipeline_parallel}} has no other stage; "
        "allowed: pipeline_parallel of at least 2, or pipeline_schedule: none",
        when="pipeline_schedule != 'none'",
    ),
    Constraint(
        "pipeline_parallel == 1",
        "pipeline_parallel = {pipeline_parallel}: needs pipeline_schedule: gpipe or 1f1b",
        when="pipeline_schedule == 'none'",
    ),
    Constraint(
        "n_microbatch == 1",
        "n_microbatch = {n_microbatch:,}: needs pipeline_schedule: gpipe or 1f1b",
        when="pipeline_schedule == 'none'",
    ),
    Constraint(
        "batch % n_microbatch == 0",
        "n_microbatch = {n_microbatch:,}: must divide batch = {batch:,}",
        when="n_microbatch > 1",
    ),
    Constraint(
        "n_microbatch >= pipeline_parallel",
        "pipeline_schedule = '1f1b': n_microbatch = {n_microbatch:,} keep no "
        "{pipeline_parallel:,} stages busy; allowed: at least pipeline_parallel, or gpipe",
        when="pipeline_schedule == '1f1b'",
    ),
    Constraint(
        "pipeline_parallel > 2",
        "pipeline_rank = 'middle': pipeline_parallel = {pipeline_parallel} has no such stage; "
        "allowed: pipeline_parallel of at least 3, or pipeline_rank: first, last",
        when="pipeline_rank == 'middle'",
    ),
    Constraint(
        "zero == 0 and weights == 'dtype' and autocast == 'none' and targets == 'given' "
        "and loss_chunks == 1 and rope_tables == 'layer' and embedding_scale == 'none' "
        "and embeddings == 'freed' and logit_cap == 'none' and attention_kernel != 'written_out'",
        f"{_NO_STAGES}: not known yet with zero: {{zero}}, weights: {{weights}}, "
        "autocast: {autocast}, targets: {targets}, loss_chunks: {loss_chunks}, "
        "rope_tables: {rope_tables}, embedding_scale: {embedding_scale}, embeddings: {embeddings}, "
        "logit_cap: {logit_cap}, attention_kernel: {attention_kernel}; allowed: 0, dtype, none, "
        "given, 1, layer, none, freed, none, math or flash or efficient",
        when="pipeline_schedule != 'none'",
    ),
)


class RunConfig(Record):
    """One step of training, or one use, of a model. No field has the name of an architecture's."""

    batch: Count = Field(1, description="sequences in one step, on each data-parallel device")
    length: Count = Field(1024, description="tokens in each sequence")
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = Field(
        "float32", description="of parameters, gradients and activations"
    )
    weights: Literal[WEIGHTS] = Field(  # pyright: ignore[reportInvalidTypeForm]
        "dtype",
        description="format of the weight matrices of the layers, for inference; embedding, head, "
        "norms, routers and biases have the dtype; unknown: quantised, in a format without formula",
    )
    weight_group: Size = Field(
        128,
        description="weights: awq, gptq, int4-group: input channels that share a scale; 0: all",
    )
    autocast: Literal["none", "bfloat16"] = Field(
        "none",
        description="matrix products and attention compute in this dtype, from casts of float32 "
        "weights and states (torch.autocast); all else in the dtype of its arguments or float32",
    )
    master_weights: bool = Field(
        False,
        description="the optimizer keeps a float32 copy of half-precision parameters and works "
        "on that (Micikevicius et al. 2018, §3.1); with zero: 3 the shards themselves are in "
        "float32, and gathered in dtype (MixedPrecisionPolicy of FSDP2)",
    )
    gradient_casts: Literal["together", "one_by_one", "accumulated"] = Field(
        "together",
        description="master_weights: gradients are cast to float32 before those in the dtype are "
        "dropped; or each is dropped when it is cast; or the backward pass adds each to a float32 "
        "buffer of all gradients, which is kept from step to step, and drops it at once "
        "(Megatron-Core's main_grad)",
    )
    optimizer: Literal["sgd", "momentum", "adamw"] = "adamw"
    foreach: bool = Field(
        False, description="the optimizer treats all tensors at once: faster, with larger peaks"
    )
    backend: Literal["gpu", "cpu"] = Field(
        "gpu",
        description="whose operations run: a GPU's fused norms and dropout (traced without "
        "storage, or on CUDA), or those of a CPU (traced, or really allocated)",
    )
    attention_kernel: Literal["math", "flash", "efficient", "written_out"] = Field(
        "math",
        description="scores in memory, in torch's composition (math), or never (FlashAttention: "
        "Dao et al. 2022; memory-efficient attention: Rabe & Staats 2021, which a GPU has in "
        "float32 too); written_out: scores in the dtype, one operation at a time, with masks of "
        "each sequence that the model makes once, and the softmax in at least float32",
    )
    softmax_dtype: Literal["float32", "dtype"] = Field(
        "float32",
        description="attention_kernel: written_out: the softmax is in at least float32, or in the "
        "dtype",
    )
    score_cap: Literal["none", "tanh"] = Field(
        "none", description="attention_kernel: written_out: tanh caps the scores (Gemma 2, §2)"
    )
    logit_cap: Literal["none", "tanh"] = Field(
        "none", description="tanh caps the logits (Gemma 2, §2)"
    )
    implementation: Implementation = Field(  # pyright: ignore[reportInvalidTypeForm]
        "modelbudget",
        description="whose code computes: sets the fields below that are not set themselves "
        "(configs/implementations/)",
    )
    norm_kernel: Literal["fused", "written_out", "written_out_exact"] = Field(
        "fused",
        description="RMSNorm in one operation, or as separate operations in at least float32: all "
        "but the scale, which multiplies in the dtype, or all (exact), with 1 + the scale; "
        "LayerNorm is one operation everywhere",
    )
    activation_kernel: Literal["fused", "written_out"] = Field(
        "fused",
        description="GELU in one operation, or its tanh approximation as separate operations "
        "(OpenAI's code for GPT-2); SiLU and ReLU are one operation everywhere",
    )
    projections: Literal["separate", "packed", "copied", "sliced"] = Field(
        "separate",
        description="query, key and value are three matrix products, or one with a matrix of three "
        "parts, whose result is split (packed), or split and copied, so that each is contiguous "
        "(copied), or sliced three times, each slice with a gradient of the whole result",
    )
    gate_and_up: Literal["separate", "packed"] = Field(
        "separate",
        description="gate and up of a gated MLP are two matrix products, or one with a matrix of "
        "both, whose result is split; experts have a setting of their own",
    )
    expert_kernel: Literal["scattered", "gathered"] = Field(
        "scattered",
        description="weighted outputs of experts are added to the sums of their tokens; or they "
        "are gathered in the order of the tokens and summed, in at least float32, with weights "
        "that the router computes in that and divides by their sum; gate and up are one product",
    )
    rope_tables: Literal["layer", "model", "complex"] = Field(
        "layer",
        description="cosines and sines of RoPE: made by each layer, for queries and for keys, half "
        "as wide as the rotated channels; or once for the model, as wide as these, which are "
        "multiplied whole and with their halves exchanged; or a buffer of complex numbers in each "
        "layer, of which it takes the rows of its tokens, and heads are multiplied as complex "
        "numbers in at least float32",
    )
    rope_layout: Literal["token", "head"] = Field(
        "token",
        description="rope_tables: model: rotated queries and keys are contiguous per token, as the "
        "projections are; or per head, as a concatenation with the channels that are not rotated, "
        "even if there are none",
    )
    embedding_scale: Literal["none", "buffer"] = Field(
        "none",
        description="the token embedding is multiplied by √d_model, which is a buffer of the model "
        "(Vaswani et al. 2017, §3.4)",
    )
    embeddings: Literal["freed", "held"] = Field(
        "freed",
        description="token and position embeddings are freed once they are summed, or are local "
        "variables of the model to the end of its layers' forward pass in training",
    )
    loss_dtype: Literal["logits", "float32"] = Field(
        "logits",
        description="the loss is computed in the dtype of the logits, or over a copy of all logits "
        "in at least float32",
    )
    state_dtype: Literal["dtype", "float32"] = Field(
        "dtype",
        description="inference keeps the state of a state space model in the dtype, or in at least "
        "float32",
    )
    targets: Literal["given", "shifted"] = Field(
        "given",
        description="targets are given; or each forward pass makes them, a copy of the labels "
        "shifted by one token, sums their losses and divides by their number",
    )
    outputs: Literal["freed", "kept"] = Field(
        "freed",
        description="logits are freed before the backward pass, or held by the caller through it",
    )
    loss_chunks: Count = Field(
        1,
        description="head and loss are computed for one chunk of the tokens after another, each "
        "with its gradients at once, so that the logits of one chunk exist at a time; 1: for all "
        "tokens, with gradients in the backward pass",
    )

    dropout: bool = Field(
        False,
        description="dropout of the embedding, of what each attention and MLP adds, and of "
        "attention's probabilities (Vaswani et al. 2017, §5.4)",
    )
    dropout_in: Literal["model", "layers", "attention"] = Field(
        "model",
        description="where dropout is: in all three places; in the two of the layers; or only of "
        "attention's probabilities",
    )
    recompute: Literal["none", "selective", "full"] = Field(
        "none",
        description="activations that are computed again in the backward pass instead of kept: "
        "those of attention's core, or all of a layer but its input (Korthikanti et al. 2022, §5)",
    )

    data_parallel: Parts = Field(
        1, description="devices that each compute `batch` sequences of their own in one step"
    )
    zero: Literal[0, 3] = Field(
        0,
        description="0: each data-parallel device holds the whole model; 3: a shard of parameters, "
        "gradients and optimizer states, and gathers one layer at a time (stage 3 of ZeRO: "
        "Rajbhandari et al. 2020, §5; torch's FSDP2); stages 1 and 2 are not known yet",
    )
    reduce_dtype: Literal["dtype", "float32"] = Field(
        "dtype",
        description="zero: 3: dtype in which devices add their gradients up (reduce_dtype of "
        "FSDP2's MixedPrecisionPolicy)",
    )
    data_rank: Literal["first", "last"] = Field(
        "first",
        description="whose bytes: of the first data-parallel device, or of the last, whose shards "
        "are smaller where devices do not divide rows",
    )
    pipeline_parallel: Parts = Field(
        1,
        description="stages of a pipeline: devices that each hold consecutive layers, the first "
        "with the embedding, the last with final norm and head (Huang et al. 2019, §2)",
    )
    pipeline_schedule: Literal["none", "gpipe", "1f1b"] = Field(
        "none",
        description="order of a stage's passes (torch.distributed.pipelining): all forward passes, "
        "then all backward passes (Huang et al. 2019, §2.3); or, once all stages are busy, one "
        "forward and one backward pass in turn (Narayanan et al. 2021, §2.2)",
    )
    n_microbatch: Count = Field(
        1, description="pipeline_schedule: parts of the batch that pass the stages one by one"
    )
    pipeline_rank: Literal["first", "middle", "last"] = Field(
        "first",
        description="whose bytes: of the first stage, of the one in the middle (half of the "
        "stages, rounded down, come before it), or of the last",
    )
    tensor_parallel: Parts = Field(
        1,
        description="devices that compute one model together: each has a part of the heads, of the "
        "MLPs' hidden channels and of the vocabulary (Shoeybi et al. 2019, §3)",
    )
    sequence_parallel: bool = Field(
        False,
        description="tensor_parallel: each device has a part of the length of norms and residual "
        "stream, and gathers it for attention, MLPs and head (Korthikanti et al. 2022, §4.2)",
    )

    derived: ClassVar[dict[str, str]] = {"length": "max(1, min(n_ctx, 1024))"}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            f"dtype in {HALF}",
            "master_weights = true: dtype = {dtype} needs no copy of higher precision; "
            f"allowed with dtype: {', '.join(HALF)}",
            when="master_weights",
        ),
        Constraint(
            "master_weights and optimizer == 'adamw'",
            "gradient_casts = 'one_by_one': needs master_weights: true and optimizer: adamw, "
            "whose step has the peak; here optimizer: {optimizer}",
            when="gradient_casts == 'one_by_one'",
        ),
        Constraint(
            "master_weights",
            "gradient_casts = 'accumulated': needs master_weights: true, which are updated with "
            "float32 gradients",
            when="gradient_casts == 'accumulated'",
        ),
        Constraint(
            f"dtype in {FULL}",
            "dtype = {dtype}: backend: cpu keep other statistics in half precision on "
            f"each device; allowed: {', '.join(FULL)}, or backend: gpu",
            when="backend == 'cpu'",
        ),
        Constraint(
            f"dtype in {HALF} or autocast != 'none'",
            f"dtype = {{dtype}}: a GPU's flash attention takes {' or '.join(HALF)}; "
            "allowed otherwise: attention_kernel: math, or autocast: bfloat16",
            when="backend == 'gpu' and attention_kernel == 'flash'",
        ),
        Constraint(
            "backend == 'gpu' and dtype == 'float32'",
            "autocast = '{autocast}': casts float32 weights on a GPU, here dtype: {dtype}, "
            "backend: {backend}; allowed: dtype: float32 with backend: gpu, or autocast: none",
            when="autocast != 'none'",
        ),
        Constraint(
            "backend == 'gpu' and dtype != 'float64'",
            "attention_kernel = 'efficient': backend: {backend}, dtype: {dtype} have none; "
            f"allowed: backend: gpu with dtype: float32, {', '.join(HALF)}; or "
            "attention_kernel: math",
            when="attention_kernel == 'efficient'",
        ),
        Constraint(
            "backend == 'gpu' or attention_kernel != 'flash'",
            "dropout = true: a CPU's flash attention has none; allowed: attention_kernel: math",
            when="dropout",
        ),
        Constraint(
            "attention_kernel == 'written_out'",
            "score_cap = '{score_cap}': attention_kernel: {attention_kernel} has none; "
            "allowed: attention_kernel: written_out",
            when="score_cap != 'none'",
        ),
        Constraint(
            "loss_chunks == 1 and zero == 0 and autocast == 'none'",
            "logit_cap = '{logit_cap}': not known yet with loss_chunks: {loss_chunks}, zero: "
            "{zero}, autocast: {autocast}; allowed: 1, 0, none",
            when="logit_cap != 'none'",
        ),
        Constraint(
            "softmax_dtype == 'float32' or recompute == 'none'",
            "attention_kernel = 'written_out': not known yet with softmax_dtype: "
            "{softmax_dtype}, recompute: {recompute}; allowed: softmax_dtype: float32, or "
            "recompute: none",
            when="attention_kernel == 'written_out'",
        ),
        Constraint(
            "recompute != 'selective' and zero == 0 and autocast == 'none' "
            "and projections != 'copied' and rope_tables != 'complex'",
            "attention_kernel = 'written_out': not known yet with recompute: {recompute}, zero: "
            "{zero}, autocast: {autocast}, projections: {projections}, rope_tables: "
            "{rope_tables}; allowed: none or full, 0, none, all but copied, all but complex",
            when="attention_kernel == 'written_out'",
        ),
        Constraint(
            "batch * length % loss_chunks == 0",
            "loss_chunks = {loss_chunks:,}: must divide the {batch:,} · {length:,} tokens",
            when="loss_chunks > 1",
        ),
        Constraint(
            "targets == 'given'",
            "loss_chunks = {loss_chunks:,}: takes given targets, here targets: {targets}; "
            "allowed: targets: given, or loss_chunks: 1",
            when="loss_chunks > 1",
        ),
        Constraint(
            f"zero == 3 and dtype in {HALF}",
            "reduce_dtype = 'float32': casts gradients of half precision that shards of zero: 3 "
            "add up; here zero: {zero}, dtype: {dtype}; allowed: reduce_dtype: dtype",
            when="reduce_dtype == 'float32'",
        ),
        Constraint(
            "data_parallel > 1",
            "zero = 3: data_parallel = {data_parallel} has no other device to share with; "
            "allowed: data_parallel of at least 2, or zero: 0",
            when="zero == 3",
        ),
        Constraint(
            "weights == 'dtype' and autocast == 'none' and loss_chunks == 1 "
            "and gradient_casts == 'together'",
            "zero = 3: not known yet with weights: {weights}, autocast: {autocast}, "
            "loss_chunks: {loss_chunks}, gradient_casts: {gradient_casts}; "
            "allowed: dtype, none, 1, together",
            when="zero == 3",
        ),
        *_PIPELINE,
        Constraint(
            "zero == 0 and pipeline_schedule == 'none' and weights == 'dtype' "
            "and autocast == 'none' and not master_weights and targets == 'given' "
            "and loss_chunks == 1 and projections == 'separate' and gate_and_up == 'separate' "
            "and not foreach and embedding_scale == 'none' and rope_tables != 'complex' "
            "and embeddings == 'freed' and logit_cap == 'none' "
            "and attention_kernel != 'written_out'",
            "tensor_parallel = {tensor_parallel}: not known yet with zero: {zero}, "
            "pipeline_schedule: {pipeline_schedule}, weights: {weights}, autocast: {autocast}, "
            "master_weights: {master_weights}, targets: {targets}, loss_chunks: {loss_chunks}, "
            "projections: {projections}, gate_and_up: {gate_and_up}, foreach: {foreach}, "
            "embedding_scale: {embedding_scale}, rope_tables: {rope_tables}, embeddings: "
            "{embeddings}, logit_cap: {logit_cap}, attention_kernel: {attention_kernel}; allowed: "
            "0, none, dtype, none, false, given, 1, separate, separate, false, none, layer or "
            "model, freed, none, math or flash or efficient",
            when="tensor_parallel > 1",
        ),
        Constraint(
            "tensor_parallel > 1",
            "sequence_parallel = true: tensor_parallel = {tensor_parallel} has no other device to "
            "divide the length with; allowed: tensor_parallel of at least 2",
            when="sequence_parallel",
        ),
        Constraint(
            "rope_tables == 'layer'",
            "sequence_parallel = true: not known yet with rope_tables: {rope_tables}; "
            "allowed: layer",
            when="sequence_parallel",
        ),
        Constraint(
            "length % tensor_parallel == 0",
            "length = {length:,}: sequence_parallel: true: tensor_parallel = {tensor_parallel} "
            "devices do not divide it",
            when="sequence_parallel",
        ),
        Constraint(
            "embedding_scale == 'none'",
            "zero = 3: not known yet with embedding_scale: {embedding_scale}; allowed: none",
            when="zero == 3",
        ),
    )


def is_sharded(r) -> int:
    """1 where a device holds a shard of each parameter tensor."""
    return int(r.zero == 3)


def stored(r):
    """Return the run as the optimizer of shards sees it: in float32 with master weights."""
    if not (is_sharded(r) and r.master_weights):
        return r
    return SimpleNamespace(**vars(r) | {"dtype": "float32", "master_weights": False})


def reduced_number(r) -> int:
    """Bytes of a number of the gradients that devices add up."""
    return exact_bytes(r.dtype) if r.reduce_dtype == "float32" else bytes_of(r.dtype)


def division(r) -> str:
    """Name the setting by which several devices share one model; empty if none does."""
    if is_sharded(r):
        return f"zero = {r.zero}"
    if is_divided(r):
        return f"tensor_parallel = {r.tensor_parallel}"
    return f"pipeline_schedule = {r.pipeline_schedule!r}" if is_pipelined(r) else ""


def is_divided(r) -> bool:
    """Whether several devices may compute one model together."""
    return not (isinstance(r.tensor_parallel, int) and r.tensor_parallel == 1)


def divides(r):
    """1 where several devices compute one model together, else 0."""
    return positive(r.tensor_parallel - 1) if is_divided(r) else 0


def of_states(r):
    """Return the run as norms and residual stream see it: with a device's part of the length."""
    if not is_divided(r):
        return r
    length = ceil_div(r.length, parts_of_length(r))
    return SimpleNamespace(**vars(r) | ONE_DEVICE | {"length": length})


def parts_of_length(r):
    """Count the parts in which devices divide the length of norms and residual stream."""
    return 1 + r.sequence_parallel * (r.tensor_parallel - 1)


def rank(r) -> int:
    """Return the index of the data-parallel device whose bytes count."""
    return 0 if r.data_rank == "first" else r.data_parallel - 1


def is_pipelined(r) -> int:
    """1 where a device holds one stage of a pipeline."""
    return int(r.pipeline_schedule != "none")


def stage_index(r):
    """Return the index of the stage whose bytes count."""
    last = r.pipeline_parallel - 1
    return {"first": 0, "middle": ceil_div(last, 2), "last": last}[r.pipeline_rank]


def tokens(r):
    """Tokens in one step."""
    return r.batch * r.length


def products(r):
    """Return the run as matrix products and attention see it: in the dtype of autocast, if any."""
    if r.autocast == "none":
        return r
    return SimpleNamespace(**vars(r) | {"dtype": r.autocast})


def casts(r) -> int:
    """1 where matrix products read copies of their weights and states, in the dtype of autocast."""
    return int(r.autocast != "none")


def widening(r) -> int:
    """Return the bytes of an element outside of matrix products, as a multiple of those inside."""
    return bytes_of(r.dtype) // bytes_of(products(r).dtype)


def one_token(r):
    """Return the run of one decoding step: one new token for each sequence."""
    return SimpleNamespace(batch=r.batch, length=1)


def bytes_of(dtype: str) -> int:
    """Bytes of one element."""
    return BYTES[dtype]


def exact_bytes(dtype: str) -> int:
    """Return the bytes per element of values that are computed in at least single precision.

    These are the statistics of norms and the softmax of attention.
    """
    return max(4, BYTES[dtype])


def accumulates(r) -> int:
    """1 where the backward pass adds each gradient to a buffer in single precision."""
    return int(r.gradient_casts == "accumulated")


def gradient_number(r) -> int:
    """Bytes of one number of the gradients that a backward pass leaves."""
    return exact_bytes(r.dtype) if accumulates(r) else bytes_of(r.dtype)


def state_bytes(r) -> int:
    """Bytes of one number of the state that a state space model keeps between tokens."""
    return exact_bytes(r.dtype) if r.state_dtype == "float32" else bytes_of(r.dtype)


def computed_again(r) -> int:
    """1 where whole layers are computed again."""
    return int(r.recompute == "full")


def drops_outputs(r):
    """1 where what each part of a layer adds has dropout."""
    return r.dropout * int(r.dropout_in != "attention")


def mask_bytes(backend: str, dtype_bytes: int) -> int:
    """Bytes that dropout keeps of one element: a GPU whether it was dropped, a CPU its factor."""
    return {"gpu": 1, "cpu": dtype_bytes}[backend]
