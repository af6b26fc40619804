"""A transformer layer: a mixer and an MLP with their norms, in sequence or in parallel."""

from typing import Literal, Self

from pydantic import Field, model_validator

from modelbudget.components import attention, mlp, norm
from modelbudget.components.attention import AttentionFields
from modelbudget.components.mlp import MLPFields
from modelbudget.run import bytes_of, tokens
from modelbudget.terms import join


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
        **sublayer(a, "attention", attention.parameters(a), norm.parameters(a)),
        **sublayer(a, "mlp", mlp.parameters(a), norm.parameters(a)),
        **shared_norm(a, norm.parameters(a)),
    }


def sublayer(a, name: str, values: dict, one_norm) -> dict:
    """A mixer or an MLP with its norms: one before (Radford et al. 2019, §2.3), one after
    (Vaswani et al. 2017, §3.1), or one at each end (Gemma 2, §2). Parallel ones may share theirs.
    """
    return {
        **{join(name, leaf): value for leaf, value in values.items()},
        f"norm.{name}": (1 - a.parallel * a.shared_norm) * one_norm,
        f"norm.{name}_output": int(a.norm_placement == "both") * one_norm,
    }


def shared_norm(a, one_norm) -> dict:
    """The one norm of a parallel layer (PaLM, §2)."""
    return {"norm.shared": a.parallel * a.shared_norm * one_norm}


def saved_of_second_norm(a, r):
    """Bytes of the norm before the MLP: a parallel layer's reads what attention's has saved."""
    return norm.saved(a, r) - a.parallel * bytes_of(r.dtype) * tokens(r) * a.d_model
