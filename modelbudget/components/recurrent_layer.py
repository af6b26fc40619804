"""A stack of recurrent layers: Elman, GRU or LSTM cells, with an optional projection."""

from typing import ClassVar, Literal

from modelbudget.architecture.base import Architecture, Count, Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import recurrent_state
from modelbudget.components.language_model import make_layers
from modelbudget.operations.joining import stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import Part, make_part
from modelbudget.operations.tape import empty
from modelbudget.operations.views import steps_over

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


class RecurrentLayerFields(Architecture):
    has_cache: ClassVar[bool] = True
    LOOPS_OVER_TOKENS: ClassVar[bool] = True
    UNLIKE_PERIODS: ClassVar[int] = 2
    """At each end: the first and the last layer are of other widths than those between them."""

    d_model: Count
    n_layer: Depth
    cell: Literal["rnn", "gru", "lstm"] = "lstm"
    d_hidden: Count
    d_last: Count
    projected: bool = False
    d_projection: Count
    input_bias: bool = True
    hidden_bias: bool = True


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
    gates, cells = GATES[a.cell], (a.n_layer - 1) * a.d_hidden + a.d_last
    handed_on = a.projected * a.d_projection + (1 - a.projected) * a.d_hidden
    from_below = a.d_hidden * (a.d_model + (a.n_layer - 2) * handed_on) + a.d_last * handed_on
    from_before = (a.n_layer - 1) * a.d_hidden * handed_on + a.d_last * width(a)
    return {
        "input": gates * from_below + a.input_bias * gates * cells,
        "hidden": gates * from_before + a.hidden_bias * gates * cells,
        "projection": a.projected * a.d_projection * cells,
    }


def program(a: Fields, r: Run, width_below, n_cell):
    """(batch, length, width below) to (batch, length, width of the layer), token by token."""
    width_above = a.d_projection if a.projected else n_cell
    input_ = make_linear("input", width_below, GATES[a.cell] * n_cell, a.input_bias)
    hidden = make_linear("hidden", width_above, GATES[a.cell] * n_cell, a.hidden_bias)
    projection = make_linear("projection", n_cell, width_above) if a.projected else None
    n_state = n_cell if a.cell == "lstm" else 0
    cache = recurrent_state.declare((width_above,), (n_state,))

    def forward(x):
        first = [] if cache else [empty((x.shape[0], n), x.dtype) for n in (width_above, n_state)]
        state, cells = cache.tensors if cache else first
        del first
        states = []
        for (below,) in steps_over(1, input_(x)):
            state, cells = step(below, state, cells)
            states.append(state)
        return stack(states, 1, x.shape[1])

    def rnn(below, state, cells):
        return (below + hidden(state)).tanh(), cells

    def gru(below, state, cells):
        from_below, from_state = below.chunk(3), hidden(state).chunk(3)
        reset = (from_below[0] + from_state[0]).sigmoid()
        keep = (from_below[1] + from_state[1]).sigmoid()
        new = (from_below[2] + reset * from_state[2]).tanh()
        return (1 - keep) * new + keep * state, cells

    def lstm(below, state, cells):
        admit, keep, new, show = (below + hidden(state)).chunk(4)
        cells = keep.sigmoid() * cells + admit.sigmoid() * new.tanh()
        state = show.sigmoid() * cells.tanh()
        return state if projection is None else projection(state), cells

    step = {"rnn": rnn, "gru": gru, "lstm": lstm}[a.cell]
    return forward


def make_recurrent_layers(a: Fields, r: Run) -> list[Part]:
    """Make n_layer layers of d_hidden cells, the last of d_last."""
    above = a.d_projection if a.projected else a.d_hidden
    return make_layers(
        a.n_layer,
        lambda i: make_part(
            "layer",
            program,
            a,
            r,
            above if i else a.d_model,
            a.d_last if i == a.n_layer - 1 else a.d_hidden,
        ),
    )
