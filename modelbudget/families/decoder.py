"""The composable decoder: GPT-2, Llama, PaLM and their relatives are switches of one record."""

from typing import Self

from pydantic import Field, model_validator

from modelbudget.architecture import Count
from modelbudget.components import embedding, layer, norm
from modelbudget.components.embedding import HeadFields, PositionFields, TokenFields
from modelbudget.components.layer import LayerFields
from modelbudget.terms import Terms, part


class Decoder(HeadFields, PositionFields, LayerFields, TokenFields):
    """A language model: embedding, n_layer layers of attention and MLP, final norm, head."""

    n_layer: Count = Field(description="layers, each one attention and one MLP")
    final_norm: bool = Field(True, description="a norm between the last layer and the head")

    @model_validator(mode="after")
    def rotary_turns_pairs(self) -> Self:
        if self.position == "rotary" and self.d_head % 2:
            raise ValueError(
                f"d_head = {self.d_head} is odd; position: rotary turns pairs of channels"
            )
        return self

    @staticmethod
    def parameters(a) -> Terms:
        return {
            **part("embedding", {"token": embedding.token(a), "position": embedding.position(a)}),
            **part("layer", layer.parameters(a), a.n_layer),
            **part("norm", {"final": a.final_norm * norm.parameters(a)}),
            **part("", {"head": embedding.head(a)}),
        }

    def build(self):
        from modelbudget.modules.decoder import DecoderModel

        return DecoderModel(self)
