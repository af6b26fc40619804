"""Fields of attention, their constraints, and what a message calls them."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Count, Parts
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.run_values import MASKS
from modelbudget.components.norm import NormFields


class AttentionFields(NormFields):
    n_head: Parts = Field(description="query heads")
    n_kv_head: Count = Field(description="key and value heads: n_head, fewer (GQA) or 1 (MQA)")
    d_head: Count = Field(description="width of one head")
    query_bias: bool = False
    key_bias: bool = False
    value_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "shared", "separate", "joint"] = Field(
        "none",
        description="normalises queries and keys: with one scale of d_head that all heads share, "
        "a separate one for each head, or jointly over all heads' channels",
    )
    qk_norm_bias: bool = Field(False, description="the norms of queries and keys add a bias")
    sinks: bool = Field(
        False,
        description="attention sinks: a learned logit per head that absorbs probability (gpt-oss)",
    )

    attention_gate: bool = Field(
        False,
        description="a projection of the states, through a sigmoid, gates the result of attention "
        "before the output projection",
    )
    gate_per_head: bool = Field(
        False, description="attention_gate: one number gates all channels of a head"
    )
    inner_norm: bool = Field(
        False,
        description="a norm inside of attention and of the MLP, before output and down projection "
        "(Sub-LN: Wang et al. 2022, Magneto, §2; BitNet)",
    )

    derived: ClassVar[dict[str, str]] = {"n_kv_head": "n_head", "d_head": "d_model / n_head"}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "n_head % n_kv_head == 0",
            "n_kv_head = {n_kv_head} does not divide n_head = {n_head}; "
            "each key–value head serves the same number of query heads",
        ),
        Constraint(
            "norm == 'layernorm' and norm_scale and qk_norm != 'none'",
            "qk_norm_bias = true needs norm: layernorm, norm_scale: true and a qk_norm; here "
            "norm: {norm}, norm_scale: {norm_scale}, qk_norm: {qk_norm}",
            when="qk_norm_bias",
        ),
        Constraint(
            "attention_gate",
            "gate_per_head = true needs attention_gate: true",
            when="gate_per_head",
        ),
    )


PACKED = ("query", "key", "value")
"""Components that are one with `projections: packed`."""


ATTEND = ("attention", "sliding_attention", "attention_and_mamba2")
"""Mixers that have the options of attention."""
PRESENT = " or ".join(f"'{name}' in {{0}}" for name in ATTEND)
"""Whether a pattern has attention."""


SWITCHES = (
    "query_bias", "key_bias", "value_bias", "output_bias", "sinks", "attention_gate",
    "gate_per_head",
)  # fmt: skip


OPTIONS = {
    **{name: f"{name} = true" for name in SWITCHES},
    "qk_norm != 'none'": "qk_norm: {qk_norm}",
    f"position in {MASKS}": "position: {position}",
}
"""Options that only attention has, and how a message names them."""


CONSTRAINTS = (
    *(
        Constraint(
            PRESENT.format("first(mixers, n_layer)"),
            f"{given} needs attention in mixers, which are '{{mixers}}'",
            when=option,
        )
        for option, given in OPTIONS.items()
    ),
    Constraint(
        "'moe' not in mlps and 'moe_with_bias' not in mlps",
        "inner_norm = true needs mlps without moe",
        when="inner_norm",
    ),
    Constraint(
        "position == 'rotary' and d_rotary <= d_head",
        "d_rotary = {d_rotary} needs position: rotary and at most d_head = {d_head} channels; "
        "position: {position}",
        when="d_rotary",
    ),
    *(
        Constraint(
            f"{name} % 2 == 0",
            f"{name} = {{{name}}} is odd; position: rotary rotates pairs of channels",
            when=f"position == 'rotary' and {is_used} and ({PRESENT.format('mixers')})",
        )
        for name, is_used in (("d_rotary", "d_rotary"), ("d_head", "not d_rotary"))
    ),
)
