"""Latent attention: queries, keys and values are read from narrow, normalised latents."""

from typing import Self

from pydantic import Field, model_validator

from modelbudget.architecture import Architecture, Count, Parts, Size
from modelbudget.components import norm
from modelbudget.operations import positive
from modelbudget.run import bytes_of, tokens


class LatentFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    n_head: Parts = Field(description="query heads")
    q_lora_rank: Size = Field(0, description="width of the queries' latent; 0: none, one matrix")
    kv_lora_rank: Size = Field(0, description="width of the latent of keys and values")
    d_nope: Size = Field(0, description="channels of a query head that know no position")
    d_rope: Size = Field(0, description="channels of a query head that are turned; one key of it")
    d_value: Size = Field(0, description="width of one value head")

    @model_validator(mode="after")
    def turns_pairs(self) -> Self:
        if self.d_rope % 2:
            raise ValueError(f"d_rope = {self.d_rope} is odd; rotary positions turn pairs")
        return self


def parameters(a) -> dict:
    """DeepSeek-V2 (DeepSeek-AI 2024), §2.1: down to a latent, a norm, up to the heads.

    The rotary key is one for all heads and comes straight from the states. Without a latent of
    their own (q_lora_rank = 0, as in V2-Lite) queries are one projection.
    """
    d_query = a.n_head * (a.d_nope + a.d_rope)
    return {
        "query": (1 - positive(a.q_lora_rank)) * a.d_model * d_query,
        "query_down": a.d_model * a.q_lora_rank,
        "query_norm": norm.parameters(a, a.q_lora_rank),
        "query_up": a.q_lora_rank * d_query,
        "kv_down": a.d_model * (a.kv_lora_rank + a.d_rope),
        "kv_norm": norm.parameters(a, a.kv_lora_rank),
        "kv_up": a.kv_lora_rank * a.n_head * (a.d_nope + a.d_value),
        "output": a.n_head * a.d_value * a.d_model,
    }


def cached(a, r):
    """Bytes of the latent and of the one rotary key of each token (DeepSeek-AI 2024, §2.1.3)."""
    return bytes_of(r.dtype) * tokens(r) * (a.kv_lora_rank + a.d_rope)
