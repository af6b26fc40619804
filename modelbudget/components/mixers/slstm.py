"""sLSTM: an LSTM with exponential gates and a memory mixed within heads (Beck et al. 2024)."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import causal_convolution, recurrent_state
from modelbudget.components.mixers.mlstm import norm_of_heads
from modelbudget.memory.parameter_tensors import Tensor, counted
from modelbudget.operations.elementwise import log_sigmoid, maximum, silu
from modelbudget.operations.joining import stack
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.products import bmm
from modelbudget.operations.tape import empty
from modelbudget.operations.views import steps_over

GROUP = "recurrence"
LOOPS_OVER_TOKENS = True
ONLY_WITH = {"autocast": "none"}
SIZES = ("n_slstm_head", "d_slstm_head", "d_slstm_convolution")

GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")


def tensors(a: Fields) -> list[Tensor]:
    """Beck et al. 2024 (arXiv 2405.04517), §2.2; code of NX-AI/xlstm, blocks/slstm/.

    All matrices are square within each head: those of the token, for two gates after a convolution
    with a bias and a SiLU, and those of the states before, for all four, with a bias. The norm
    of each head has a scale for each channel. There is no output projection.
    """
    square = a.d_model * a.d_slstm_head
    return [
        Tensor("", 4 * a.d_model),
        Tensor("convolution", a.d_model * a.d_slstm_convolution),
        Tensor("convolution", a.d_model),
        *(Tensor(name, square) for name in GATES),
        Tensor("hidden", 4 * square),
        Tensor("norm", a.d_model),
    ]


parameters = counted(tensors)


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape, token by token."""
    heads = a.n_slstm_head, a.d_slstm_head
    biases = parameter("bias", 4, a.d_model)
    convolve = make_part(
        "convolution", causal_convolution.program, a.d_model, a.d_slstm_convolution
    )
    input_gate, forget_gate, cell_input, output_gate = (
        make_part(name, _head_linear, *heads, a.d_slstm_head) for name in GATES
    )
    of_hidden = make_part("hidden", _head_linear, *heads, 4 * a.d_slstm_head)
    norm = make_part("norm", norm_of_heads, a.d_model)
    states_of_channel = [(a.d_model,)] * 4
    cache = recurrent_state.declare(*states_of_channel, dtype=recurrent_state.dtype_of(r))

    def forward(x):
        batch, length, width = x.shape
        convolved = by_head(silu(convolve(x)))
        x = by_head(x)
        made = [input_gate(convolved), forget_gate(convolved)]
        made += [cell_input(x), output_gate(x)]
        # (4, batch, length, d_model)
        of_tokens = stack([y.transpose(0, 1).reshape((batch, length, width)) for y in made])
        states = cache.tensors if cache else [empty((batch, width), convolved.dtype)] * 4
        outputs = []
        for (new,) in steps_over(2, of_tokens + biases.unsqueeze(1).unsqueeze(2)):
            states = _step(new + of_state(states[0].to(new.dtype)), *states)
            outputs.append(states[0].to(new.dtype))
        return norm(stack(outputs, 1, length).unflatten(2, heads))

    def by_head(x):
        """(batch, length, d_model) to (n_head, batch · length, d_head)."""
        return x.flatten(0, 1).unflatten(1, heads).transpose(0, 1)

    def of_state(hidden):
        """Return what the gates read of a hidden state (batch, d_model): (4, batch, d_model)."""
        of_heads = hidden.unflatten(1, heads).transpose(0, 1)
        made = of_hidden(of_heads).unflatten(2, (4, a.d_slstm_head))  # (n_head, batch, 4, d_head)
        return made.permute([2, 1, 0, 3]).flatten(2)

    return forward


def _head_linear(n_head, d_head, width):
    """Make a matrix for each head: (n_head, tokens, d_head) to (n_head, tokens, width)."""
    weight = parameter("weight", n_head, d_head, width)
    return lambda x: bmm(x, weight)


def _step(gates, hidden, cell, normaliser, largest):
    """Return the next states, each (batch, d_model); gates (4, batch, d_model)."""
    write, keep, new, out = gates.unbind(0)
    keep = log_sigmoid(keep) + largest
    top = maximum(keep, write)
    written, kept = (write - top).exp(), (keep - top).exp()
    cell = kept * cell + written * new.tanh()
    normaliser = kept * normaliser + written
    return out.sigmoid() * cell / normaliser, cell, normaliser, top
