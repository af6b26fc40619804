"""Devices that share a model: data, pipeline, tensor, sequence, context and expert parallelism."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.constraint import Constraint, known_only_with
from modelbudget.architecture.record import Count, Parts, Record
from modelbudget.architecture.run_step import HALF
from modelbudget.architecture.stored_formats import IN_SHARDS

_SCHEDULE = "pipeline_schedule = '{pipeline_schedule}'"
_NEEDS_SCHEDULE = "needs pipeline_schedule: gpipe, 1f1b or interleaved_1f1b"
_INTERLEAVED = "pipeline_schedule == 'interleaved_1f1b'"
_PLAIN = {
    "weights": ("dtype",),
    "vocabulary_dtype": ("dtype",),
    "autocast": ("none",),
    "targets": ("given",),
    "loss_chunks": (1,),
    "embedding_scale": ("none",),
    "embeddings": ("freed",),
    "logit_cap": ("none",),
    "attention_kernel": ("math", "flash", "efficient"),
}
"""Settings that stages and devices which compute one model together have formulas for."""
_OF_PROGRAMS = {
    "targets": ("given", "shifted"),
    "embedding_scale": ("none", "buffer"),
    "embeddings": ("freed", "held"),
    "logit_cap": ("none", "tanh"),
}
"""Settings that programs of tensor parallelism know, too."""


class Devices(Record):
    """How many devices share a model, in which way, and whose bytes count."""

    data_parallel: Parts = Field(
        1, description="devices that each compute `batch` sequences of their own in one step"
    )
    zero: Literal[0, 1, 2, 3] = Field(
        0,
        description="0: each data-parallel device holds the whole model; 1: but a part of the "
        "optimizer states, of all parameters in a row (Megatron-Core's distributed optimizer); 2: "
        "a shard of parameters, gradients and optimizer states, and gathers the parameters from "
        "the forward to the backward pass (torch's FSDP2, reshard_after_forward=False); 3: a "
        "shard, and gathers one layer at a time, twice (FSDP2) (stages of ZeRO: Rajbhandari et al. "
        "2020, §5)",
    )
    reduce_dtype: Literal["dtype", "float32"] = Field(
        "dtype",
        description="zero: 2 and 3: dtype in which devices add their gradients up (reduce_dtype of "
        "FSDP2's MixedPrecisionPolicy)",
    )
    gradient_buckets: Literal["none", "copied", "views"] = Field(
        "none",
        description="zero: 0: buckets in which data-parallel devices add gradients up (torch's "
        "DistributedDataParallel); none: each gradient is added up in place; copied: a copy of all "
        "gradients, kept from step to step; views: gradients are views of their buckets "
        "(gradient_as_bucket_view)",
    )
    data_rank: Literal["first", "middle", "last"] = Field(
        "first",
        description="whose bytes: of the first data-parallel device, of that in the middle (half "
        "of the devices, rounded down, come before it), or of the last, whose shards are smaller "
        "where devices do not divide rows; with context_parallel, also of the device with the "
        "first tokens of a sequence, of that in the middle of the ring, or of the last device",
    )
    pipeline_parallel: Parts = Field(
        1,
        description="stages of a pipeline: devices that each hold consecutive layers, the first "
        "with the embedding, the last with final norm and head (Huang et al. 2019, §2)",
    )
    pipeline_schedule: Literal["none", "gpipe", "1f1b", "interleaved_1f1b"] = Field(
        "none",
        description="order of a stage's passes (torch.distributed.pipelining): all forward passes, "
        "then all backward passes (Huang et al. 2019, §2.3); or, once all stages are busy, one "
        "forward and one backward pass in turn (Narayanan et al. 2021, §2.2.1); or so with "
        "`virtual_stages` on each device (§2.2.2)",
    )
    virtual_stages: Parts = Field(
        1,
        description="pipeline_schedule: interleaved_1f1b: stages on each device, each of "
        "consecutive layers; a microbatch passes all devices that often",
    )
    n_microbatch: Count = Field(
        1,
        description="parts of the batch, of which each has a forward and a backward pass before "
        "the step of the optimizer (gradient accumulation); with pipeline_schedule they pass the "
        "stages one by one",
    )
    pipeline_rank: Literal["first", "second", "middle", "last"] = Field(
        "first",
        description="whose bytes: of the first stage, of the second (of those between the ends it "
        "holds most), of the one in the middle (half of the stages, rounded down, come before it), "
        "or of the last",
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
    context_parallel: Parts = Field(
        1,
        description="devices that each have a part of the tokens of a sequence, in all layers, and "
        "all parameters or a shard of them",
    )
    context_exchange: Literal["all_to_all", "all_gather", "ring"] = Field(
        "all_to_all",
        description="context_parallel: what devices exchange for attention: queries, keys, values "
        "and results, so that each has all tokens of a part of the heads (Jacobs et al. 2023, §3); "
        "or keys and values alone, all at once, or of one device after the other (Liu et al. 2023, "
        "§3), whose results are merged (torch's ring attention)",
    )
    expert_parallel: Parts = Field(
        1,
        description="devices that each have a part of the routed experts, and compute `batch` "
        "sequences of their own: rows of tokens are sent to the devices of their experts and back "
        "(Lepikhin et al. 2021, §3)",
    )
    routing: Literal["even", "one_device"] = Field(
        "even",
        description="expert_parallel: a device receives as many rows as it sends, or the most that "
        "it can: each token of all devices goes to as many of its experts as it may. The busiest "
        "device holds no less than the one and no more than the other",
    )

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            f"zero in (2, 3) and dtype in {HALF}",
            "reduce_dtype = 'float32': casts gradients of half precision that shards add up, here "
            "zero: {zero}, dtype: {dtype}; allowed: zero: 2 or 3 with half precision, or "
            "reduce_dtype: dtype",
            when="reduce_dtype == 'float32'",
        ),
        Constraint(
            "data_parallel * context_parallel * expert_parallel > 1",
            "zero = {zero}: data_parallel = {data_parallel} has no other device to share with; "
            "allowed: data_parallel, context_parallel or expert_parallel of at least 2, or zero: 0",
            when="zero > 0",
        ),
        *known_only_with(
            "zero = {zero}",
            "zero in (2, 3)",
            weights=("dtype", *IN_SHARDS),
            expert_weights=("weights",),
            vocabulary_dtype=("dtype",),
            autocast=("none",),
            gradient_casts=("together",),
        ),
        Constraint(
            "data_parallel > 1",
            "gradient_buckets = '{gradient_buckets}': data_parallel = {data_parallel} has no other "
            "device to add up with; allowed: data_parallel of at least 2, or gradient_buckets: "
            "none",
            when="gradient_buckets != 'none'",
        ),
        *known_only_with(
            "gradient_buckets = '{gradient_buckets}'",
            "gradient_buckets != 'none'",
            zero=(0,),
            gradient_casts=("together",),
            loss_chunks=(1,),
            targets=("given",),
            weights=("dtype",),
            vocabulary_dtype=("dtype",),
            tensor_parallel=(1,),
            context_parallel=(1,),
            expert_parallel=(1,),
            pipeline_schedule=("none",),
        ),
        Constraint(
            "pipeline_parallel > 1",
            f"{_SCHEDULE}: pipeline_parallel = {{pipeline_parallel}} has no other stage; "
            "allowed: pipeline_parallel of at least 2, or pipeline_schedule: none",
            when="pipeline_schedule != 'none'",
        ),
        Constraint(
            "pipeline_parallel == 1",
            f"pipeline_parallel = {{pipeline_parallel}}: {_NEEDS_SCHEDULE}",
            when="pipeline_schedule == 'none'",
        ),
        *known_only_with(
            "n_microbatch = {n_microbatch:,} without stages",
            "n_microbatch > 1 and pipeline_schedule == 'none'",
            optimizer_in_backward=(False,),
            gradient_buckets=("none",),
        ),
        Constraint(
            "virtual_stages == 1",
            "virtual_stages = {virtual_stages}: needs pipeline_schedule: interleaved_1f1b",
            when="pipeline_schedule != 'interleaved_1f1b'",
        ),
        Constraint(
            "virtual_stages > 1",
            f"{_SCHEDULE}: virtual_stages = {{virtual_stages}} has nothing to interleave; allowed: "
            "at least 2, or pipeline_schedule: 1f1b",
            when=_INTERLEAVED,
        ),
        Constraint(
            "n_microbatch % max(1, n_microbatch // pipeline_parallel) == 0",
            f"{_SCHEDULE}: n_microbatch = {{n_microbatch:,}}: pipeline_parallel = "
            "{pipeline_parallel} makes {n_microbatch // pipeline_parallel:,} rounds, which do not "
            "divide it; allowed: a multiple of pipeline_parallel",
            when=_INTERLEAVED,
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
            "pipeline_rank = '{pipeline_rank}': pipeline_parallel = {pipeline_parallel} has no "
            "such stage; allowed: pipeline_parallel of at least 3, or pipeline_rank: first, last",
            when="pipeline_rank in ('second', 'middle')",
        ),
        *known_only_with(
            _SCHEDULE,
            "pipeline_schedule != 'none'",
            **_PLAIN | {"weights": ("dtype", *IN_SHARDS)},
            expert_weights=("weights",),
        ),
        *known_only_with(
            "tensor_parallel = {tensor_parallel}",
            "tensor_parallel > 1",
            zero=(0, 1, 2, 3),
            **{n: values for n, values in (_PLAIN | _OF_PROGRAMS).items() if n != "weights"},
        ),
        Constraint(
            "weights == 'dtype'",
            "tensor_parallel = {tensor_parallel}: weights: {weights} are divided in serving alone, "
            "as vLLM does; allowed: dtype, or --serve",
            when="tensor_parallel > 1",
        ),
        Constraint(
            "sequence_parallel or gradient_casts == 'accumulated'",
            "tensor_parallel = {tensor_parallel} with foreach: {foreach}, fused: {fused}: torch "
            "cannot step divided matrices and whole norms at once; allowed: sequence_parallel: "
            "true, or gradient_casts: accumulated",
            when="(foreach or fused) and tensor_parallel > 1",
        ),
        *known_only_with(
            "zero = 1",
            "zero == 1",
            gradient_casts=("accumulated",),
            weights=("dtype",),
            vocabulary_dtype=("dtype",),
        ),
        Constraint(
            "zero in (2, 3) or gradient_casts == 'accumulated'",
            "tensor_parallel = {tensor_parallel} with zero = {zero}: master_weights: true is known "
            "with gradient_casts: accumulated",
            when="tensor_parallel > 1 and master_weights",
        ),
        Constraint(
            "tensor_parallel > 1",
            "sequence_parallel = true: tensor_parallel = {tensor_parallel} has no other device to "
            "divide the length with; allowed: tensor_parallel of at least 2",
            when="sequence_parallel",
        ),
        Constraint(
            "length % context_parallel == 0",
            "length = {length:,}: context_parallel = {context_parallel} devices do not divide it",
        ),
        Constraint(
            "length % (context_parallel * tensor_parallel) == 0",
            "length = {length:,}: sequence_parallel: true: tensor_parallel = {tensor_parallel} "
            "devices do not divide it, or their part of it with context_parallel = "
            "{context_parallel}",
            when="sequence_parallel",
        ),
        *known_only_with(
            "context_parallel = {context_parallel}",
            "context_parallel > 1",
            **_PLAIN | {"attention_kernel": ("flash",)},
        ),
        *known_only_with(
            "context_exchange = '{context_exchange}'",
            "context_parallel > 1 and context_exchange != 'all_to_all'",
            projections=("separate",),
        ),
        Constraint(
            "expert_parallel > 1",
            "routing = 'one_device': expert_parallel = {expert_parallel} has no other device; "
            "allowed: expert_parallel of at least 2, or routing: even",
            when="routing == 'one_device'",
        ),
        *known_only_with(
            "expert_parallel = {expert_parallel}",
            "expert_parallel > 1",
            zero=(0, 2, 3),
            weights=("dtype",),
            vocabulary_dtype=("dtype",),
            autocast=("none",),
            expert_kernel=("scattered",),
        ),
    )
