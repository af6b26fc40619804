"""mLSTM: an LSTM whose memory is a matrix for each head (Beck et al. 2024, arXiv 2405.04517)."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import recurrent_state
from modelbudget.memory.parameter_tensors import Tensor, counted
from modelbudget.operations.einsum import einsum
from modelbudget.operations.elementwise import log_sigmoid, maximum
from modelbudget.operations.joining import stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.norms import layer_norm
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.tape import empty
from modelbudget.operations.views import steps_over

GROUP = "recurrence"
LOOPS_OVER_TOKENS = True
ONLY_WITH = {"autocast": "none"}
SIZES = ("n_mlstm_head", "d_mlstm_key", "d_mlstm_value")


def tensors(a: Fields) -> list[Tensor]:
    """Beck et al. 2024, eq. 19 to 27; Beck et al. 2025 (xLSTM 7B), §3: projections, gates, norm.

    Input and forget gate are one number for each head and have a bias; the output gate has one for
    each channel and none. The norm has a scale for each channel.
    """
    key, value = a.n_mlstm_head * a.d_mlstm_key, a.n_mlstm_head * a.d_mlstm_value
    of_gate = a.d_model * a.n_mlstm_head, a.n_mlstm_head
    return [
        Tensor("query", a.d_model * key),
        Tensor("key", a.d_model * key),
        Tensor("value", a.d_model * value),
        *(Tensor("input_gate", numbers) for numbers in of_gate),
        *(Tensor("forget_gate", numbers) for numbers in of_gate),
        Tensor("gate", a.d_model * value),
        Tensor("norm", value),
        Tensor("output", value * a.d_model),
    ]


parameters = counted(tensors)


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape, token by token."""
    n_head, d_key, d_value = a.n_mlstm_head, a.d_mlstm_key, a.d_mlstm_value
    query_of = make_linear("query", a.d_model, n_head * d_key)
    key_of = make_linear("key", a.d_model, n_head * d_key)
    value_of = make_linear("value", a.d_model, n_head * d_value)
    input_gate = make_linear("input_gate", a.d_model, n_head, bias=True)
    forget_gate = make_linear("forget_gate", a.d_model, n_head, bias=True)
    gate = make_linear("gate", a.d_model, n_head * d_value)
    norm = make_part("norm", norm_of_heads, n_head * d_value)
    output = make_linear("output", n_head * d_value, a.d_model)
    shapes = (n_head, d_key, d_value), (n_head, d_key), (n_head,)
    cache = recurrent_state.declare(*shapes, dtype=recurrent_state.dtype_of(r))

    def forward(x):
        query, key, value = (
            projection(x).unflatten(-1, (n_head, width))
            for projection, width in ((query_of, d_key), (key_of, d_key), (value_of, d_value))
        )
        write, keep = (_capped(gate(x)) for gate in (input_gate, forget_gate))
        batch = x.shape[0]
        state = cache.tensors if cache else [empty((batch, *shape), x.dtype) for shape in shapes]
        y, state = _scan(query * 0.1, key, value, write, log_sigmoid(keep), state)
        return output(gate(x).sigmoid() * norm(y))

    return forward


def norm_of_heads(width):
    """Normalise each head alone: (batch, length, n_head, d) to (batch, length, n_head · d)."""
    weight = parameter("weight", width)
    return lambda x: layer_norm(x, 1, None, None).flatten(2) * weight


def _capped(x):
    """Return numbers between −15 and 15."""
    return 15.0 * (x / 15.0).tanh()


def _scan(query, key, value, write, keep, state):
    """Compute a token's matrix, normaliser and stabiliser from those of the token before.

    query, key (batch, length, n_head, d_key), value (…, d_value), write and keep (batch, length,
    n_head): logarithms of both gates.
    """
    matrix, normaliser, m = state
    outputs = []
    for q, k, v, i, f in steps_over(1, query, key, value, write, keep):
        largest = maximum(f + m, i)
        kept, written = (f + m - largest).exp(), (i - largest).exp()
        k = written.unsqueeze(-1) * k
        matrix = kept.unsqueeze(-1).unsqueeze(-1) * matrix + k.unsqueeze(-1) * v.unsqueeze(-2)
        normaliser = kept.unsqueeze(-1) * normaliser + k
        m = largest
        read = einsum("bhk,bhkv->bhv", q, matrix.to(q.dtype))
        size = (q * normaliser).sum([-1]).abs()
        outputs.append(read / maximum(size, (-m).exp()).unsqueeze(-1).to(q.dtype))
    return stack(outputs, 1, query.shape[1]), (matrix, normaliser, m)
