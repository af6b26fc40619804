"""One small RNN for each channel: d_model cells with one input and d_hidden states each."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import recurrent_state
from modelbudget.components.contract import Values
from modelbudget.operations.einsum import einsum
from modelbudget.operations.joining import stack
from modelbudget.operations.part import parameter
from modelbudget.operations.tape import empty
from modelbudget.operations.views import steps_over

GROUP = "recurrence"
LOOPS_OVER_TOKENS = True
SIZES = ("d_hidden",)


def parameters(a: Fields) -> Values:
    """Count the parameters of d_model Elman cells with input size 1 (Elman 1990; torch.nn.RNN).

    cuDNN keeps two biases, one for the input and one for the state; torch counts both.
    """
    return {
        "input": a.d_model * a.d_hidden,
        "hidden": a.d_model * a.d_hidden * a.d_hidden,
        "biases": a.d_model * 2 * a.d_hidden,
    }


def program(a: Fields, r: Run):
    """(batch, length, d_model) to the same shape, token by token."""
    cells = a.d_model, a.d_hidden
    input_, hidden = parameter("input", *cells), parameter("hidden", *cells, a.d_hidden)
    biases = parameter("biases", 2, *cells)
    cache = recurrent_state.declare(cells)

    def forward(x):
        state = cache.tensors[0] if cache else empty((x.shape[0], *cells), x.dtype)
        bias = biases.sum([0])
        outputs = []
        for (step,) in steps_over(1, x):
            carried = einsum("bdj,dij->bdi", state, hidden)
            state = (step.unsqueeze(-1) * input_ + carried + bias).tanh()
            outputs.append(state.mean([-1]))
        return stack(outputs, 1, x.shape[1])

    return forward
