"""Fields of attention, their constraints, and what a message calls them."""

from typing import Literal

from modelbudget.architecture.base import Count, Parts
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.run_values import MASKS
from modelbudget.components.norm import NormFields


class AttentionFields(NormFields):
    n_head: Parts
    n_kv_head: Count
    d_head: Count
    query_bias: bool = False
    key_bias: bool = False
    value_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "shared", "separate", "joint"] = "none"
    qk_norm_bias: bool = False
    sinks: bool = False

    attention_gate: bool = False
    gate_per_head: bool = False
    inner_norm: bool = False


PACKED = ("query", "key", "value")
GATED_QUERY = ("query", "gate")
"""Components that are one with `projections: packed` and with `projections: gated_query`."""


PLAIN = ("attention", "sliding_attention", "nope_attention")
"""Mixers that are attention alone: of all tokens, of a window of them, or without positions."""
ATTEND = (*PLAIN, "attention_and_mamba2")
"""Mixers that have the options of attention."""
ROTATE = (*ATTEND, "differential_attention", "mixture_of_attention_heads")
"""Mixers that rotate channels of heads by RoPE."""
PRESENT, ROTATED = (" or ".join(f"'{n}' in {{0}}" for n in names) for names in (ATTEND, ROTATE))
"""Whether a pattern has attention, and whether it has such mixers."""


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
            f"{setting} needs attention in mixers, which are '{{mixers}}'",
            when=option,
        )
        for option, setting in OPTIONS.items()
    ),
    Constraint(
        "'moe' not in mlps",
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
            when=f"position == 'rotary' and {is_used} and ({ROTATED.format('mixers')})",
        )
        for name, is_used in (("d_rotary", "d_rotary"), ("d_head", "not d_rotary"))
    ),
)
