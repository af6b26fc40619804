"""Devices that share a model: data, pipeline, tensor, sequence, context and expert parallelism."""

from typing import ClassVar, Literal

from modelbudget.architecture.constraint import Check
from modelbudget.architecture.record import Count, Parts, Record
from modelbudget.architecture.run_rules import rules


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
