"""Devices that share a model: data, pipeline, tensor, sequence, context and expert parallelism."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.constraint import Check
from modelbudget.architecture.record import Count, Parts, Record
from modelbudget.architecture.run_rules import rules


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

    constraints: ClassVar[tuple[Check, ...]] = (*rules("devices"),)
