"""Rows of vLLM's tables of cosines and sines, for each position that a config.json has."""

from collections.abc import Mapping
from typing import Any

from modelbudget.huggingface.classes import Translation

OF_M_ROPE = 4
"""Rows of a position of M-RoPE, which counts places in videos (rotary_embedding/mrope.py)."""
MOST_TIMES_LONGER = 2**20
"""What no text is longer by: a larger factor is a mistake."""


def rope_rows(config: Mapping[str, Any], of_class: Translation) -> int:
    """Return the rows of all tables; of a scaling that no class could read, those without one.

    Layers of one kind share a table; that of linear scaling is as many times longer as its factor
    (rotary_embedding/linear_scaling_rope.py).
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    rope = rope if isinstance(rope, dict) else {}
    of_full = rope.get("full_attention")
    rope = of_full if isinstance(of_full, dict) else rope
    rows = OF_M_ROPE if "mrope_section" in rope else 1
    factor = rope.get("factor")
    is_linear = rope.get("rope_type", rope.get("type")) == "linear"
    if is_linear and isinstance(factor, int | float) and 1 <= factor <= MOST_TIMES_LONGER:
        rows *= round(factor)
    return rows + of_class.rope_of_windows
