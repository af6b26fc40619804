"""Conditions of attention's formulas: 1 where one holds, else 0 (`valid_if`)."""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import MASKS
from modelbudget.components.attention.attention_layout import (
    d_rotary,
    has_rope,
    own_tables,
    position_of,
)


def no_mask_on_scores(a: Fields, r: Run):
    """ALiBi, T5's buckets and relative positions add to the scores."""
    return int(position_of(a) not in MASKS)


def math_for_masks(a: Fields, r: Run):
    """1 unless scores that something is added to meet a kernel that never writes them out."""
    return int(position_of(a) not in MASKS or r.attention_kernel == "math")


def mask_is_not_saved(a: Fields, r: Run):
    """1 unless checkpointing saves what is added to the scores, which only some layers compute."""
    is_saved_by_layer = position_of(a) == "relative" and r.recompute == "full"
    return int(position_of(a) not in MASKS or r.recompute == "none" or is_saved_by_layer)


def no_sinks(a: Fields, r: Run):
    """Sinks add a key to the scores."""
    return 1 - a.sinks


def keeps_result(a: Fields, r: Run):
    """Return 1 unless the result is normalised, or a gate of a whole head repeated for channels."""
    return (1 - a.gate_per_head) * (1 - a.inner_norm)


def rotates_whole_heads(a: Fields, r: Run):
    """With tables of the model or complex numbers, RoPE rotates all channels of a head."""
    in_part = positive(a.d_head - d_rotary(a))
    return 1 - has_rope(a) * (1 - own_tables(a, r)) * in_part


SAVED_IF = math_for_masks, mask_is_not_saved, no_sinks, keeps_result, rotates_whole_heads
"""Conditions of the bytes that are saved."""
PEAK_IF = no_mask_on_scores, no_sinks, keeps_result, rotates_whole_heads
"""Conditions of the timelines."""
