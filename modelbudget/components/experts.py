"""A mixture of experts: a router sends each token through a few of many MLPs."""

from typing import Literal, Self

from pydantic import Field, model_validator

from modelbudget.architecture import Size
from modelbudget.components import mlp
from modelbudget.components.mlp import MLPFields
from modelbudget.operations import positive


class ExpertsFields(MLPFields):
    n_expert: Size = Field(0, description="routed experts in a layer")
    n_expert_per_token: Size = Field(0, description="routed experts that a token goes through")
    d_expert: Size = Field(0, description="hidden width of one routed expert")
    d_shared: Size = Field(
        0, description="hidden width of the experts that every token goes through, all together"
    )
    shared_gate: bool = Field(False, description="a learned gate weighs the shared experts")
    router_bias: Literal["none", "logit", "selection"] = Field(
        "none",
        description="a bias for each expert: in the router's logits (gpt-oss), or in the choice "
        "of experts alone, where load and not a gradient moves it (DeepSeek-V3)",
    )

    @model_validator(mode="after")
    def chooses_among_experts(self) -> Self:
        if self.n_expert_per_token > self.n_expert:
            raise ValueError(
                f"n_expert_per_token = {self.n_expert_per_token} is more than "
                f"n_expert = {self.n_expert}"
            )
        if self.shared_gate and not self.d_shared:
            raise ValueError("shared_gate = true needs shared experts: d_shared of at least 1")
        return self


def parameters(a, n_expert) -> dict:
    """n_expert routed experts (all, or those that one token uses), the router, shared experts.

    Router and routed experts: Shazeer et al. 2017, §2; Fedus et al. 2022, §2.1. Shared experts:
    Dai et al. 2024 (DeepSeekMoE), §3.2. Gate of the shared experts: Qwen1.5-MoE.
    """
    routed = mlp.parameters(a, a.d_expert)
    shared = mlp.parameters(a, a.d_shared)
    return {
        "router": a.d_model * a.n_expert + int(a.router_bias != "none") * a.n_expert,
        **{name: n_expert * value for name, value in routed.items()},
        **{f"shared.{name}": positive(a.d_shared) * value for name, value in shared.items()},
        "shared_gate": a.shared_gate * a.d_model,
    }
