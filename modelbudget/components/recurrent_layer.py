"""A stack of recurrent layers: Elman, GRU or LSTM cells, with a projection if wanted."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from modelbudget.architecture.base import Architecture, Count, Depth
from modelbudget.architecture.run_config import bytes_of

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


class RecurrentLayerFields(Architecture):
    d_model: Count = Field(description="width of the token embedding: the first layer's input")
    n_layer: Depth = Field(description="recurrent layers, one on top of the other")
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    d_hidden: Count = Field(description="cells of every layer but the last")
    d_last: Count = Field(description="cells of the last layer")
    projected: bool = Field(False, description="each layer hands on d_projection, not all cells")
    d_projection: Count = Field(
        description="width that projected layers hand on, to themselves too"
    )
    input_bias: bool = Field(True, description="each gate adds a bias to what the input gives")
    hidden_bias: bool = Field(
        True, description="a second bias for each gate, for the state: cuDNN and torch have it"
    )

    derived: ClassVar[dict[str, str]] = {"d_last": "d_hidden", "d_projection": "d_hidden"}

    @model_validator(mode="after")
    def one_layer_has_one_width(self) -> Self:
        if self.n_layer == 1 and self.d_last != self.d_hidden:
            raise ValueError(
                f"d_last = {self.d_last} differs from d_hidden = {self.d_hidden}; "
                "with n_layer = 1 the last layer is the only one"
            )
        return self

    @model_validator(mode="after")
    def only_lstms_are_projected(self) -> Self:
        if self.projected and self.cell != "lstm":
            raise ValueError(f"projected = true with cell: {self.cell}; allowed: cell: lstm")
        return self


def width(a):
    """What the last layer hands on."""
    return a.projected * a.d_projection + (1 - a.projected) * a.d_last


def parameters(a) -> dict:
    """All layers together, for they differ in width.

    RNN: Elman 1990; LSTM: Hochreiter & Schmidhuber 1997 with forget gates (Gers et al. 2000);
    projection: Sak et al. 2014, §2, without peepholes; GRU: Cho et al. 2014, §2.3.

    Layers of d_hidden read d_model, then each other; the last, of d_last, reads the one before.
    With a single layer the terms of the missing second one cancel, since d_last = d_hidden.
    """
    gates = GATES[a.cell]
    handed_on = a.projected * a.d_projection + (1 - a.projected) * a.d_hidden
    cells = (a.n_layer - 1) * a.d_hidden + a.d_last
    from_below = (
        a.d_hidden * a.d_model + (a.n_layer - 2) * a.d_hidden * handed_on + a.d_last * handed_on
    )
    from_before = (a.n_layer - 1) * a.d_hidden * handed_on + a.d_last * width(a)
    return {
        "input": gates * (from_below + a.input_bias * cells),
        "hidden": gates * (from_before + a.hidden_bias * cells),
        "projection": a.projected * a.d_projection * cells,
    }


def cached(a, r):
    """Bytes of what each layer handed on last and, of an LSTM, of its cells (Hochreiter &
    Schmidhuber 1997), all layers together.
    """
    cells = (a.n_layer - 1) * a.d_hidden + a.d_last
    handed_on = a.projected * a.n_layer * a.d_projection + (1 - a.projected) * cells
    return bytes_of(r.dtype) * r.batch * (handed_on + int(a.cell == "lstm") * cells)
