"""Rows of vLLM's tables of cosines and sines, for each position that a config.json has."""

from collections.abc import Mapping
from typing import Any

from modelbudget.huggingface.classes import Translation

OF_M_ROPE = 4
"""Rows of a position of M-RoPE, which counts places in videos (rotary_embedding/mrope.py)."""


def rope_rows(config: Mapping[str, Any], of_class: Translation) -> int:
    """Return the rows of all tables.

    Layers of one kind share a table; that of linear scaling is as many times longer as its factor
    (rotary_embedding/linear_scaling_rope.py).
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope.get("full_attention", rope)
    rows = OF_M_ROPE if "mrope_section" in rope else 1
    if rope.get("rope_type", rope.get("type")) == "linear":
        rows *= round(rope.get("factor", 1))
    return rows + of_class.rope_of_windows
