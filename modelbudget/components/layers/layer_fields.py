"""Fields of a layer: the order of its parts and the places of its norms."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.constraint import Constraint
from modelbudget.components.attention.attention_fields import AttentionFields
from modelbudget.components.feed_forward.mlp import MLPFields

BEFORE, AFTER = ("pre", "both"), ("post", "output", "both")
"""Norm placements with a norm before each part, and with one after it."""

NORM_OF_OUTPUT = ("output", "both")
"""Those whose norm after a part reads its output, before it is added."""


class LayerFields(MLPFields, AttentionFields):
    parallel: bool = Field(
        False, description="attention and MLP read the same states and are added up together"
    )
    shared_norm: bool = Field(True, description="parallel: both read one norm's output")
    norm_placement: Literal["pre", "post", "output", "both"] = Field(
        "pre",
        description="norms before attention and MLP; after the residual sum; on the output, "
        "before it is added; or before and on the output",
    )

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "norm_placement == 'pre'",
            "norm_placement = '{norm_placement}': parallel: true allows 'pre' alone",
            when="parallel",
        ),
    )
