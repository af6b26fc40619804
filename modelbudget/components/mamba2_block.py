"""Mamba-2's mixer: one decay for each head, a matrix of states for each head."""

from modelbudget.architecture.base import Architecture, Count, Parts
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import causal_convolution, norm, recurrent_state
from modelbudget.components.mamba_block import read_by_token
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor, counted
from modelbudget.operations.elementwise import silu, softplus
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.tape import empty
from modelbudget.operations.views import repeat_interleave


class StateSpaceDualFields(Architecture):
    d_model: Count
    d_inner: Count
    n_head: Parts
    d_head: Count = 64
    d_state: Count = 128
    n_group: Count = 1
    d_convolution: Count = 4


def matrices(a: Fields) -> list[Matrix]:
    """Return the projections; the convolution's weights are no linear layer's."""
    rows = 2 * a.d_inner + 2 * a.n_group * a.d_state + a.n_head
    return [Matrix("input", a.d_model, rows), Matrix("output", a.d_inner, a.d_model)]


def tensors(a: Fields) -> list[Tensor]:
    """Dao & Gu 2024, §7.1.

    `input` gives a gate, the recurrence's input, B and C, and the steps, all at once; the
    convolution runs over input, B and C and has a bias; `step` is the bias of the steps; `decay`
    the logarithm of −A; `skip` is D; `norm` an RMSNorm before the output, within each group.
    """
    d_convolved = a.d_inner + 2 * a.n_group * a.d_state
    by_name = {
        "input": a.d_model * (a.d_inner + d_convolved + a.n_head),
        "convolution": d_convolved * a.d_convolution,
        "step": a.n_head,
        "decay": a.n_head,
        "skip": a.n_head,
        "norm": a.d_inner,
        "output": a.d_inner * a.d_model,
    }
    biases = Tensor("convolution", d_convolved)
    return [*(Tensor(name, numbers) for name, numbers in by_name.items()), biases]


parameters = counted(tensors)


def program(a, r: Run, has_norm: bool = True):
    """States (batch, length, d_model) to states of the same shape, token by token."""
    d_shared = a.n_group * a.d_state
    d_convolved = a.d_inner + 2 * d_shared
    step_bias, log_decay = parameter("step", a.n_head), parameter("decay", a.n_head)
    skip = parameter("skip", a.n_head)
    input_ = make_linear("input", a.d_model, a.d_inner + d_convolved + a.n_head)
    convolve = make_part("convolution", causal_convolution.program, d_convolved, a.d_convolution)
    norm = make_part("norm", _grouped_norm, a, r) if has_norm else lambda x: x
    output = make_linear("output", a.d_inner, a.d_model)
    shape_of_state = a.n_head, a.d_head, a.d_state
    cache = recurrent_state.declare(shape_of_state, dtype=recurrent_state.dtype_of(r))

    def forward(x):
        gate, x, step = input_(x).split((a.d_inner, d_convolved, a.n_head))
        x, write, read = silu(convolve(x)).split((a.d_inner, d_shared, d_shared))
        x = x.unflatten(-1, (a.n_head, a.d_head))
        write, read = (by_head(y) for y in (write, read))
        batch = x.shape[0]
        state = cache.tensors[0] if cache else empty((batch, *shape_of_state), x.dtype)
        y, state = _scan(x, softplus(step + step_bias), -log_decay.exp(), write, read, state)
        y = (y + skip.unsqueeze(-1) * x).flatten(2)
        return output(norm(y * silu(gate)))

    def by_head(x):
        """(batch, length, n_group · d_state) to (batch, length, n_head, d_state)."""
        groups = x.unflatten(-1, (a.n_group, a.d_state))
        return repeat_interleave(groups, a.n_head // a.n_group, 2)

    return forward


def _grouped_norm(a, r: Run):
    """RMSNorm within each group of channels: (…, d_inner) to the same shape."""
    weight = parameter("weight", a.d_inner)

    def forward(x):
        groups = x.unflatten(-1, (a.n_group, a.d_inner // a.n_group))
        return norm.rms_norm(r)(groups, 1, None).flatten(-2) * weight

    return forward


def _scan(x, step, decay, write, read, state):
    """h ← exp(step · decay) h + step · x ⊗ write;  y = h · read.

    x (batch, length, n_head, d_head), step (batch, length, n_head), decay (n_head), write and read
    (batch, length, n_head, d_state), state (batch, n_head, d_head, d_state).
    """
    kept = (step * decay).exp().unsqueeze(-1).unsqueeze(-1)
    written = (step.unsqueeze(-1) * x).unsqueeze(-1) * write.unsqueeze(3)
    return read_by_token("bhds,bhs->bhd", kept, written, read, state)
