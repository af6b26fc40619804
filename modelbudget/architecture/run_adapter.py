"""Adapters of a run: small trained matrices next to frozen ones."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.constraint import Constraint, known_only_with
from modelbudget.architecture.layer_pattern import pattern
from modelbudget.architecture.record import Count, Record

ALL_LINEAR = "all-linear"
TARGETS = (
    ALL_LINEAR,
    "query", "key", "value", "output", "gate", "up", "down", "query_key_value", "gate_up",
)  # fmt: skip
_WITH_ADAPTER = "adapter != 'none'"


class Adapter(Record):
    """What is trained: all parameters, or an adapter of frozen ones."""

    adapter: Literal["none", "lora"] = Field(
        "none",
        description="train all parameters; or two matrices of rank adapter_rank next to each "
        "target, whose product is added to it, with all else frozen (lora: Hu et al. 2022, §4.1, "
        "as in PEFT)",
    )
    adapter_rank: Count = Field(8, description="adapter: lora: rank r of the two matrices")
    adapter_targets: pattern(*TARGETS) = Field(  # pyright: ignore[reportInvalidTypeForm]
        ALL_LINEAR,
        description="adapter: linear layers that get one, by name, separated by spaces; "
        "all-linear: all but the head (query_key_value and gate_up are the packed matrices)",
    )
    adapter_dtype: Literal["float32", "dtype"] = Field(
        "float32",
        description="adapter: dtype of its matrices: float32 whatever the dtype, with a float32 "
        "copy of each target's input (PEFT's autocast_adapter_dtype), or the dtype",
    )
    adapter_dropout: bool = Field(
        False, description="adapter: dropout of each target's input before its adapter"
    )

    constraints: ClassVar[tuple[Constraint, ...]] = (
        *known_only_with(
            "adapter = '{adapter}'",
            _WITH_ADAPTER,
            master_weights=(False,),
            zero=(0,),
            gradient_buckets=("none",),
            pipeline_schedule=("none",),
            tensor_parallel=(1,),
            context_parallel=(1,),
            expert_parallel=(1,),
            gradient_accumulation_fusion=(False,),
        ),
    )
