"""A stack of recurrent layers: Elman, GRU or LSTM cells, with an optional projection."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Depth
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.run_config import bytes_of

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


class RecurrentLayerFields(Architecture):
    d_model: Count = Field(description="width of the token embedding: the first layer's input")
    n_layer: Depth = Field(description="recurrent layers, one on top of the other")
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    d_hidden: Count = Field(description="cells of every layer but the last")
    d_last: Count = Field(description="cells of the last layer")
    projected: bool = Field(False, description="outputs of layers are projected to d_projection")
    d_projection: Count = Field(
        description="width of the projected outputs, which are also the recurrent inputs"
    )
    input_bias: bool = Field(True, description="each gate adds a bias to what the input gives")
    hidden_bias: bool = Field(
        True, description="a second bias for each gate, for the state: cuDNN and torch have it"
    )

    derived: ClassVar[dict[str, str]] = {"d_last": "d_hidden", "d_projection": "d_hidden"}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "d_last == d_hidden",
            "d_last = {d_last} differs from d_hidden = {d_hidden}; "
            "with n_layer = 1 the last layer is the only one",
            when="n_layer == 1",
        ),
        Constraint(
            "cell == 'lstm'",
            "projected = true with cell: {cell}; allowed: cell: lstm",
            when="projected",
        ),
    )


def width(a):
    """Channels of the last layer's output."""
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
    """Return the bytes of the recurrent state of all layers.

    The last output of each layer and, in an LSTM, its cell state (Hochreiter & Schmidhuber 1997).
    """
    cells = (a.n_layer - 1) * a.d_hidden + a.d_last
    handed_on = a.projected * a.n_layer * a.d_projection + (1 - a.projected) * cells
    return bytes_of(r.dtype) * r.batch * (handed_on + int(a.cell == "lstm") * cells)
