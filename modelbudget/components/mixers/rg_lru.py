"""Griffin's recurrent block around an RG-LRU (De et al. 2024, arXiv 2402.19427).

RG-LRU: a real-gated linear recurrent unit, one state for each channel.
"""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import causal_convolution, recurrent_state
from modelbudget.memory.parameter_tensors import Tensor, counted
from modelbudget.operations.elementwise import gelu, softplus
from modelbudget.operations.joining import stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.products import baddbmm
from modelbudget.operations.tape import empty, product
from modelbudget.operations.views import steps_over

GROUP = "state space"
LOOPS_OVER_TOKENS = True
ONLY_WITH = {"activation_kernel": "fused", "autocast": "none"}
SIZES = ("n_lru_block", "d_lru_block", "d_lru_convolution")


def _d_lru(a: Fields):
    """Channels of the recurrence."""
    return a.n_lru_block * a.d_lru_block


def tensors(a: Fields) -> list[Tensor]:
    """De et al. 2024, §2.3 and §2.4: both branches, the convolution, both gates, the output.

    Λ (`decay`) has one number for each channel. The matrices of the gates are block-diagonal
    (appendix A). All projections have biases.
    """
    projection, block = a.d_model * _d_lru(a), _d_lru(a) * a.d_lru_block
    with_bias = {
        "gate": (projection, _d_lru(a)),
        "input": (projection, _d_lru(a)),
        "convolution": (_d_lru(a) * a.d_lru_convolution, _d_lru(a)),
        "input_gate": (block, _d_lru(a)),
        "recurrence_gate": (block, _d_lru(a)),
        "output": (projection, a.d_model),
    }
    pairs = (Tensor(name, numbers) for name, both in with_bias.items() for numbers in both)
    return [Tensor("decay", _d_lru(a)), *pairs]


parameters = counted(tensors)


def program(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape, token by token."""
    width, block = _d_lru(a), (a.n_lru_block, a.d_lru_block)
    decay = parameter("decay", width)
    gate_of = make_linear("gate", a.d_model, width, bias=True)
    input_ = make_linear("input", a.d_model, width, bias=True)
    convolve = make_part("convolution", causal_convolution.program, width, a.d_lru_convolution)
    input_gate = make_part("input_gate", _block_diagonal, *block)
    recurrence_gate = make_part("recurrence_gate", _block_diagonal, *block)
    output = make_linear("output", width, a.d_model, bias=True)
    cache = recurrent_state.declare((width,), dtype=recurrent_state.dtype_of(r))

    def forward(x):
        gate = gelu(gate_of(x))
        x = convolve(input_(x)).contiguous()
        rate = -8.0 * softplus(decay)
        kept = (rate * recurrence_gate(x).sigmoid()).exp()
        written = (1 - kept**2).sqrt() * (input_gate(x).sigmoid() * x)
        state = cache.tensors[0] if cache else empty((x.shape[0], width), x.dtype)
        y, state = _scan(kept, written, state)
        return output(y * gate)

    return forward


def _block_diagonal(n_block, size):
    """(batch, length, n_block · size) to the same shape: a matrix for each block, and a bias."""
    weight, bias = parameter("weight", n_block, size, size), parameter("bias", n_block, size)

    def forward(x):
        blocks = x.view((product(x.shape[:-1]), n_block, size)).transpose(0, 1)
        y = baddbmm(bias.unsqueeze(1), blocks, weight)
        return y.transpose(0, 1).reshape(x.shape)

    return forward


def _scan(kept, written, state):
    """h ← a · h + written.

    kept (a) and written (batch, length, d_lru), state (batch, d_lru).
    """
    states = []
    for keep, new in steps_over(1, kept, written):
        state = keep * state + new
        states.append(state.to(new.dtype))
    return stack(states, 1, kept.shape[1]), state
