"""A stack of recurrent layers: Elman, GRU or LSTM cells, with an optional projection."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Depth
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of, tokens
from modelbudget.components.contract import Values

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
    input_bias: bool = Field(True, description="each gate adds a bias to its input product")
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
    gates, cells = GATES[a.cell], _cells(a)
    matrices = _matrices(a)
    return matrices | {
        "input": matrices["input"] + a.input_bias * gates * cells,
        "hidden": matrices["hidden"] + a.hidden_bias * gates * cells,
    }


def _cells(a: Fields):
    """Cells of all layers."""
    return (a.n_layer - 1) * a.d_hidden + a.d_last


def _handed_on(a: Fields):
    """Channels that a layer hands on to the next."""
    return a.projected * a.d_projection + (1 - a.projected) * a.d_hidden


def _matrices(a: Fields) -> Values:
    """Count the parameters of all layers without the biases."""
    gates, handed_on = GATES[a.cell], _handed_on(a)
    from_below = (
        a.d_hidden * a.d_model + (a.n_layer - 2) * a.d_hidden * handed_on + a.d_last * handed_on
    )
    from_before = (a.n_layer - 1) * a.d_hidden * handed_on + a.d_last * width(a)
    return {
        "input": gates * from_below,
        "hidden": gates * from_before,
        "projection": a.projected * a.d_projection * _cells(a),
    }


def n_tensors(a: Fields) -> Values:
    """Count the parameter tensors of all layers."""
    return {
        "input": a.n_layer * (1 + a.input_bias),
        "hidden": a.n_layer * (1 + a.hidden_bias),
        "projection": a.n_layer * a.projected,
    }


def saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved for backward by all layers, step by step.

    Inputs of the three projections: outputs of the layer below, the layer's output one step before
    (the first step's are zeros), and the cells that are projected. Between them: an Elman cell's
    new state, which the next step reads; a GRU's two gates, the new state, the complement of one
    gate and what the state gives to all three; an LSTM's four gates, the cells before, and their
    tanh after.
    """
    size, cells = bytes_of(r.dtype) * r.batch, _cells(a)
    inputs = a.d_model + (a.n_layer - 1) * _handed_on(a)
    states = (a.n_layer - 1) * _handed_on(a) + width(a)
    n_state = 1 if a.cell == "rnn" else r.length
    inside = {"rnn": 1, "gru": 7, "lstm": 6}[a.cell]
    return {
        "input": size * r.length * inputs,
        "hidden": size * n_state * states,
        "": size * r.length * inside * cells,
        "projection": a.projected * size * r.length * cells,
    }


def flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token: a multiplication and a sum."""
    return {name: 2 * tokens(r) * n for name, n in _matrices(a).items()}


def flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, for the gradients of both its factors; the first state needs none."""
    found = {name: 2 * n for name, n in flops(a, r).items()}
    return found | {"hidden": found["hidden"] - 2 * r.batch * _matrices(a)["hidden"]}


def cached(a, r):
    """Return the bytes of the recurrent state of all layers.

    The last output of each layer and, in an LSTM, its cell state (Hochreiter & Schmidhuber 1997).
    """
    cells = _cells(a)
    handed_on = a.projected * a.n_layer * a.d_projection + (1 - a.projected) * cells
    return bytes_of(r.dtype) * r.batch * (handed_on + int(a.cell == "lstm") * cells)
