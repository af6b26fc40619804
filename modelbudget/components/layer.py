"""A transformer layer: attention and MLP with their norms, in sequence or in parallel."""

from pydantic import Field

from modelbudget.components import attention, mlp, norm
from modelbudget.components.attention import AttentionFields
from modelbudget.components.mlp import MLPFields
from modelbudget.components.norm import NormFields


class LayerFields(NormFields, MLPFields, AttentionFields):
    parallel: bool = Field(
        False, description="attention and MLP read one norm's output and are added up together"
    )


def parameters(a) -> dict:
    """Two norms in sequence (Radford et al. 2019, §2.3), one in parallel (PaLM, §2)."""
    one_norm = norm.parameters(a)
    return {
        **{f"attention.{name}": value for name, value in attention.parameters(a).items()},
        **{f"mlp.{name}": value for name, value in mlp.parameters(a).items()},
        "norm.attention": (1 - a.parallel) * one_norm,
        "norm.mlp": (1 - a.parallel) * one_norm,
        "norm.shared": a.parallel * one_norm,
    }
