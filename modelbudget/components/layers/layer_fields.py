"""Fields of a layer: the order of its parts and the places of its norms."""

from typing import Literal

from modelbudget.components.attention.attention_fields import AttentionFields
from modelbudget.components.feed_forward.mlp import MLPFields

BEFORE, AFTER = ("pre", "both"), ("post", "output", "both")
"""Norm placements with a norm before each part, and with one after it."""

NORM_OF_OUTPUT = ("output", "both")
"""Those whose norm after a part reads its output, before it is added."""


class LayerFields(MLPFields, AttentionFields):
    parallel: bool = False
    shared_norm: bool = True
    norm_placement: Literal["pre", "post", "output", "both"] = "pre"
