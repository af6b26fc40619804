"""Mamba's mixer: a linear recurrence whose step, input and output depend on the token."""

from modelbudget.architecture.base import Architecture, Count
from modelbudget.architecture.formula_arguments import Run
from modelbudget.components import causal_convolution, norm, recurrent_state
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor, counted
from modelbudget.operations.einsum import einsum
from modelbudget.operations.elementwise import silu, softplus
from modelbudget.operations.joining import cat, stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import NoProgramError, make_part, parameter
from modelbudget.operations.products import linear
from modelbudget.operations.tape import Active, empty
from modelbudget.operations.views import steps_over


class MambaFields(Architecture):
    d_model: Count
    d_inner: Count
    d_state: Count = 16
    d_convolution: Count = 4
    d_step: Count
    inner_norm: bool = False


def matrices(a) -> list[Matrix]:
    """Return the projections; the convolution's weights are no linear layer's."""
    return [
        Matrix("input", a.d_model, 2 * a.d_inner),
        Matrix("selection", a.d_inner, a.d_step + 2 * a.d_state),
        Matrix("step", a.d_step, a.d_inner, bias=1),
        Matrix("output", a.d_inner, a.d_model),
    ]


def tensors(a) -> list[Tensor]:
    """Gu & Dao 2023, §3.2 (Algorithm 2), §3.4 and §3.6.

    `input` gives the recurrence its input and a gate; `selection` a token's step (low rank), B and
    C; `decay` is the logarithm of −A; `skip` is D. Convolution and step have biases.
    """
    by_name = {
        "input": a.d_model * 2 * a.d_inner,
        "convolution": a.d_inner * a.d_convolution,
        "selection": a.d_inner * (a.d_step + 2 * a.d_state),
        "step": a.d_step * a.d_inner,
        "decay": a.d_inner * a.d_state,
        "skip": a.d_inner,
        "output": a.d_inner * a.d_model,
    }
    biases = [Tensor(name, a.d_inner) for name in ("convolution", "step")]
    return [*(Tensor(name, numbers) for name, numbers in by_name.items()), *biases]


parameters = counted(tensors)


def program(a, r: Run, norms_of_selected=None, n_head=0):
    """States (batch, length, d_model) to states of the same shape, token by token.

    `norms_of_selected` makes norms of step, write and read weights. With `n_head` each head selects
    from its own channels, and for them alone.
    """
    sizes = a.d_step, a.d_state, a.d_state
    log_decay, skip = parameter("decay", a.d_inner, a.d_state), parameter("skip", a.d_inner)
    input_ = make_linear("input", a.d_model, 2 * a.d_inner)
    convolve = make_part("convolution", causal_convolution.program, a.d_inner, a.d_convolution)
    if n_head:
        width = a.d_inner // n_head
        selection = make_part("selection", _linear_of_head, width, n_head * sum(sizes), False)
        step_of = make_part("step", _linear_of_head, a.d_step, a.d_inner, True)
    else:
        selection = make_linear("selection", a.d_inner, sum(sizes))
        step_of = make_linear("step", a.d_step, a.d_inner, bias=True)
    output = make_linear("output", a.d_inner, a.d_model)
    norms = norms_of_selected() if norms_of_selected else None
    shape = a.d_inner, a.d_state
    cache = recurrent_state.declare(shape, dtype=recurrent_state.dtype_of(r))

    def forward(x):
        x, gate = input_(x).chunk(2)
        x = silu(convolve(x))
        state = cache.tensors[0] if cache else empty((x.shape[0], *shape), x.dtype)
        y, state = scanned_by_head(x, state) if n_head else scanned(x, state)
        return output((y + skip * x) * silu(gate))

    def scanned(x, state):
        step, write, read = selected(x)
        return _scan(x, softplus(step_of(step)), -log_decay.exp(), write, read, state)

    def selected(x):
        """Return the step (low rank), write and read weights of each token."""
        parts = selection(x).split(sizes)
        if a.inner_norm:
            return [norm.rms_norm(r)(y, 1, None) for y in parts]
        if norms is None:
            return parts
        step, write, read = parts
        of_step, of_write, of_read = norms
        return of_step(step), of_write(write), of_read(read)

    def scanned_by_head(x, state):
        decays = (-log_decay.exp()).chunk(n_head, 0)
        heads = zip(x.chunk(n_head), decays, state.chunk(n_head, 1), strict=True)
        pairs = [scanned_of_head(number, *head) for number, head in enumerate(heads)]
        outputs, states = zip(*pairs, strict=True)
        return cat(outputs), cat(states, 1)

    def scanned_of_head(number, x, decay, state):
        step, write, read = selection(x, number, n_head).split(sizes)
        return _scan(x, softplus(step_of(step, number, n_head)), decay, write, read, state)

    return forward


def _linear_of_head(d_in, d_out, has_bias):
    """Make a linear layer of the rows of a matrix that belong to one of its heads."""
    tape = Active.tape
    if tape.adapter is not None or tape.weight_format is not None:
        raise NoProgramError("adapter or weights: of a selective scan with heads")
    weight = parameter("weight", d_out, d_in)
    shift = parameter("bias", d_out) if has_bias else None

    def forward(x, head, n_head):
        bias = None if shift is None else shift.chunk(n_head)[head]
        return linear(x, weight.chunk(n_head, 0)[head], bias)

    return forward


def _scan(x, step, decay, write, read, state):
    """h ← exp(step · decay) h + step · write · x;  y = read · h.

    x, step (batch, length, d_inner), decay (d_inner, d_state), write, read (batch, length,
    d_state), state (batch, d_inner, d_state).
    """
    kept = (step.unsqueeze(-1) * decay).exp()  # (batch, length, d_inner, d_state)
    written = (step * x).unsqueeze(-1) * write.unsqueeze(2)
    return read_by_token("bds,bs->bd", kept, written, read, state)


def read_by_token(equation: str, kept, written, read, state):
    """Return what is read of the states of all tokens, by an equation of einsum, and the last."""
    outputs = []
    for keep, new, out in steps_over(1, kept, written, read):
        state = keep * state + new
        outputs.append(einsum(equation, state.to(out.dtype), out))
    return stack(outputs, 1, kept.shape[1]), state
