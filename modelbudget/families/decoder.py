"""The composable decoder: GPT-2, Llama, PaLM, DeepSeek and their relatives are switches of one
record.
"""

import math
from typing import Self

from pydantic import Field, model_validator

from modelbudget.architecture import Count, Size
from modelbudget.components import (
    attention,
    embedding,
    experts,
    latent,
    layer,
    mlp,
    norm,
    recurrent,
)
from modelbudget.components.embedding import FactorisedFields, HeadFields, PositionFields
from modelbudget.components.experts import ExpertsFields
from modelbudget.components.latent import LatentFields
from modelbudget.components.layer import LayerFields
from modelbudget.components.pattern import instances, pattern
from modelbudget.terms import Terms, part

NEEDS = {
    "experts": ("mlps", ("n_expert", "n_expert_per_token", "d_expert")),
    "latent": ("mixers", ("kv_lora_rank", "d_nope", "d_rope", "d_value")),
    "recurrent": ("mixers", ("d_hidden",)),
}
"""What a part needs: the pattern that names it, and the sizes that are 0 without it."""


class Decoder(
    HeadFields, PositionFields, ExpertsFields, LatentFields, LayerFields, FactorisedFields
):
    """A language model: embedding, n_layer layers of a mixer and an MLP, final norm, head."""

    n_layer: Count = Field(description="layers, each one mixer and one MLP")
    mixers: pattern("attention", "latent", "recurrent", "none") = Field(
        "attention", description="what mixes the positions in each layer, repeated over the layers"
    )
    mlps: pattern("mlp", "experts", "none") = Field(
        "mlp", description="what follows in each layer, repeated over the layers"
    )
    n_dense_layer: Size = Field(0, description="first layers with a plain MLP, whatever mlps says")
    d_hidden: Size = Field(0, description="mixers: recurrent: hidden size of each channel's cell")
    embedding_norm: bool = Field(False, description="a norm between embedding and first layer")
    final_norm: bool = Field(True, description="a norm between the last layer and the head")

    @model_validator(mode="after")
    def parts_have_their_sizes(self) -> Self:
        for word, (words, sizes) in NEEDS.items():
            there = word in getattr(self, words).split()
            for name in sizes:
                size = getattr(self, name)
                if there and not size:
                    raise ValueError(f"{name} = 0: {word} in {words} needs at least 1")
                if size and not there:
                    raise ValueError(f"{name} = {size} needs {word} in {words}")
        return self

    @model_validator(mode="after")
    def attention_is_there(self) -> Self:
        """What only attention has is refused where there is none."""
        biases = ("query_bias", "key_bias", "value_bias", "output_bias", "sinks")
        given = [f"{name} = true" for name in biases if getattr(self, name)]
        given += [f"qk_norm: {self.qk_norm}"] * (self.qk_norm != "none")
        given += [f"position: {self.position}"] * (
            self.position in ("alibi", "buckets", "relative")
        )
        if given and "attention" not in self.mixers.split():
            raise ValueError(f"{given[0]} needs attention in mixers, which are {self.mixers!r}")
        return self

    @model_validator(mode="after")
    def positions_fit_mixers(self) -> Self:
        if "latent" in self.mixers.split() and self.position != "rotary":
            raise ValueError(f"position: {self.position}: latent in mixers needs position: rotary")
        turned = self.d_rotary or self.d_head
        if self.d_rotary and (self.position != "rotary" or self.d_rotary > self.d_head):
            raise ValueError(
                f"d_rotary = {self.d_rotary} needs position: rotary and at most d_head = "
                f"{self.d_head} channels; position: {self.position}"
            )
        if self.position == "rotary" and turned % 2 and "attention" in self.mixers.split():
            name = "d_rotary" if self.d_rotary else "d_head"
            raise ValueError(f"{name} = {turned} is odd; position: rotary turns pairs of channels")
        return self

    @model_validator(mode="after")
    def layers_do_something(self) -> Self:
        if self.n_dense_layer > self.n_layer:
            raise ValueError(
                f"n_dense_layer = {self.n_dense_layer} is more than n_layer = {self.n_layer}"
            )
        mixers, mlps = self.mixers.split(), self.mlps.split()
        if self.parallel and "none" in mixers + mlps:
            raise ValueError("parallel = true needs a mixer and an MLP in each layer, not none")
        period = math.lcm(len(mixers), len(mlps))
        for i in range(min(self.n_layer - self.n_dense_layer, period)):
            mixer = mixers[(self.n_dense_layer + i) % len(mixers)]
            if mixer == mlps[i % len(mlps)] == "none":
                raise ValueError(
                    f"layer {self.n_dense_layer + i + 1} is empty: none in mixers and in mlps"
                )
        return self

    @staticmethod
    def parameters(a) -> Terms:
        """All parameters: those of every expert."""
        return decoder(a, a.n_expert)

    @staticmethod
    def active_parameters(a) -> Terms:
        """The parameters that one token uses: all but the routed experts that it passes by.

        The input embedding counts in full, as in Mixtral's and Qwen 3's figures; DeepSeek's and
        gpt-oss's leave it out.
        """
        return decoder(a, a.n_expert_per_token)

    def build(self):
        from modelbudget.modules.decoder import DecoderModel

        return DecoderModel(self)


def decoder(a, n_expert) -> Terms:
    """The whole model, with n_expert experts in each layer that has any."""
    values = {
        "attention": attention.parameters(a),
        "latent": latent.parameters(a),
        "recurrent": recurrent.parameters(a),
        "mlp": mlp.parameters(a),
        "experts": experts.parameters(a, n_expert),
        "none": None,
    }
    if a.position == "relative":
        values["attention"] |= attention.relative_positions(a)
    layers = instances(a.mixers, a.n_layer) | instances(a.mlps, a.n_layer - a.n_dense_layer)
    layers["mlp"] = a.n_dense_layer + layers.get("mlp", 0)
    terms = part("embedding", {"position": embedding.position(a)})
    terms |= part("", embedding.factorised(a))
    for name, n_layer in layers.items():
        if name != "none":
            terms |= part("layer", layer.sublayer(a, name, values[name]), n_layer)
    terms |= part("layer", layer.shared_norm(a), a.n_layer)
    one_norm = norm.parameters(a)
    norms = {"embedding": a.embedding_norm * one_norm, "final": a.final_norm * one_norm}
    return terms | part("norm", norms)
