"""A transformer layer: a mixer and an MLP with their norms, in sequence or in parallel."""

from typing import Literal, Self

from pydantic import Field, model_validator

from modelbudget.components import attention, mlp, norm
from modelbudget.components.attention import AttentionFields
from modelbudget.components.mlp import MLPFields


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

    @model_validator(mode="after")
    def parallel_is_before(self) -> Self:
        if self.parallel and self.norm_placement != "pre":
            raise ValueError(
                f"norm_placement = {self.norm_placement!r}: parallel: true allows 'pre' alone"
            )
        return self


def parameters(a) -> dict:
    """The plain layer: attention and MLP."""
    return {
        **sublayer(a, "attention", attention.parameters(a)),
        **sublayer(a, "mlp", mlp.parameters(a)),
        **shared_norm(a),
    }


def sublayer(a, name: str, values: dict) -> dict:
    """A mixer or an MLP with its norms: one before (Radford et al. 2019, §2.3), one after
    (Vaswani et al. 2017, §3.1), or one at each end (Gemma 2, §2). Parallel ones may share theirs.
    """
    one_norm = norm.parameters(a)
    return {
        **{f"{name}.{leaf}": value for leaf, value in values.items()},
        f"norm.{name}": (1 - a.parallel * a.shared_norm) * one_norm,
        f"norm.{name}_output": int(a.norm_placement == "both") * one_norm,
    }


def shared_norm(a) -> dict:
    """The one norm of a parallel layer (PaLM, §2)."""
    return {"norm.shared": a.parallel * a.shared_norm * norm.parameters(a)}
