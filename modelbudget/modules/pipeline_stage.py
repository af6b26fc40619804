"""A stage of a pipeline: consecutive layers of a decoder, and one of its ends or none."""

from copy import deepcopy

from torch import nn

from modelbudget.modules.decoder import DecoderModel
from modelbudget.modules.embedding import RotaryPositions


class Received(RotaryPositions):
    """States (batch, length, d_model) from the stage before, instead of an embedding.

    `parts`: devices that each have a part of the length, of which the tables of RoPE are whole.
    """

    parts = 1

    def forward(self, x, _=None):
        return x

    def bias(self, _):
        return None

    def rotation(self, x, length: int):
        return super().rotation(x, length * self.parts)


def stages(model: DecoderModel, indices: range, n_stage: int) -> list[DecoderModel]:
    """Return some stages of a decoder; the first of them is the model itself."""
    copies = [model, *(deepcopy(model) for _ in indices[1:])]
    return [cut(stage, index, n_stage) for stage, index in zip(copies, indices, strict=True)]


def cut(model: DecoderModel, index: int, n_stage: int) -> DecoderModel:
    """Leave only one stage of a decoder whose positions are all in its embedding or its layers.

    The first stage has the embedding, the last the final norm and the head. A tied matrix is then
    on both, and each has a gradient of its own.
    """
    n_layer = len(model.layer) // n_stage
    model.layer = model.layer[index * n_layer : (index + 1) * n_layer]
    if index > 0:
        model.add_module("embedding", Received(model.embedding.d_rotary))
        model.add_module("dropout", nn.Identity())
        model.head.tied = False
    if index < n_stage - 1:
        model.add_module("head", nn.Identity())
    inside = {"embedding": index == 0, "final": index == n_stage - 1}
    model.norm = nn.ModuleDict({name: norm for name, norm in model.norm.items() if inside[name]})
    return model
