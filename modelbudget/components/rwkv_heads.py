"""What RWKV-5, 6 and 7 share: heads whose state is a matrix, and the norm of what they read."""

from modelbudget.architecture.base import Architecture, Count, Parts
from modelbudget.architecture.formula_arguments import Fields
from modelbudget.components import recurrent_state, rwkv_mixers
from modelbudget.components.contract import Values
from modelbudget.operations.joining import repeat, stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.norms import layer_norm
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.products import bmm
from modelbudget.operations.tape import Active, empty, steps

SQUARE = ("receptance", "key", "value", "output")


class MatrixRWKVFields(Architecture):
    d_model: Count
    d_ff: Count
    n_head: Parts
    d_head: Count = 64


def low_rank(name: str, a: Fields, rank, bias: int = 1) -> Values:
    """Count two matrices in a row, of which the second may have a bias: the base of a LoRA."""
    return {f"{name}.down": a.d_model * rank, f"{name}.up": (rank + bias) * a.d_model}


class Heads:
    """What the time mixers have in common, in the order of their parameters.

    Heads are those of all sequences, (batch · n_head, d_head), in at least single precision.
    """

    def __init__(self, a: Fields, n_mix: int, *own: str):
        """`own`: further parameters with a number for each channel."""
        self.a = a
        self.mix = parameter("mix", n_mix, a.d_model)
        self.bonus = parameter("bonus", a.d_model)
        self.own = [parameter(name, a.d_model) for name in own]
        self.receptance, self.key, self.value, self.output = (
            make_linear(name, a.d_model, a.d_model) for name in SQUARE
        )
        self.norm = make_part("norm", _head_norm, a)
        self.precise = at_least_float32(Active.tape.dtype)
        self.shift = rwkv_mixers.declare_shift(a)
        self.cache = recurrent_state.declare((a.n_head, a.d_head, a.d_head), dtype=self.precise)

    def previous(self, x):
        return rwkv_mixers.previous(x, self.shift)

    def before(self, x):
        """Return the matrices before the first token."""
        if self.cache is not None:
            return self.cache.tensors[0].flatten(0, 1)
        return empty((x.shape[0] * self.a.n_head, self.a.d_head, self.a.d_head), self.precise)

    def by_token(self, *tensors):
        """Return copies (length, heads, d_head) in one storage of (batch, length, d_model)."""
        by_token = []
        for x in tensors:
            heads = self.by_head(x.to(self.precise))
            by_token.append(heads.transpose(0, 1).flatten(1, 2))
        return stack(by_token).unbind()

    def by_head(self, x):
        """(batch, length, d_model) to (batch, length, n_head, d_head)."""
        return x.unflatten(-1, (self.a.n_head, self.a.d_head))

    def of_sequences(self, x, batch):
        """(d_model,) to (heads, d_head, 1)."""
        heads = x.to(self.precise).unflatten(0, (self.a.n_head, self.a.d_head))
        return repeat(heads, (batch, 1)).unsqueeze(-1)

    def normed(self, outputs, like):
        """(length, heads, d_head) to (batch, length, d_model)."""
        heads = outputs.to(like.dtype).unflatten(1, (like.shape[0], self.a.n_head))
        heads = heads.transpose(0, 1)
        return self.norm(heads)


def _head_norm(a: Fields):
    """(batch, length, n_head, d_head) to (batch, length, d_model): each head normalised alone."""
    weight, bias = parameter("weight", a.d_model), parameter("bias", a.d_model)
    return lambda x: layer_norm(x, 1, None, None).flatten(2) * weight + bias


def make_low_rank(name: str, d_model, rank, function=None, bias: bool = True):
    """Make a map (…, d_model) to the same shape through `rank` channels."""

    def make():
        down, up = make_linear("down", d_model, rank), make_linear("up", rank, d_model, bias)

        def forward(x):
            low = down(x)  # live to the end
            return up(low if function is None else function(low))

        return forward

    return make_part(name, make)


def scan(receptance, key, value, decays, bonus, state):
    """S ← decay · S + k ⊗ v; reads r (S + bonus · k ⊗ v).

    receptance, key, value (length, heads, d_head); a decay for each token and the bonus (heads,
    d_head, 1); state (heads, d_head, d_head).
    """
    written = key.unsqueeze(-1) * value.unsqueeze(-2)
    outputs = []
    each = (x.unbind(0, by_step=True) for x in (receptance, written))
    each = *each, (bonus * written).unbind(0, by_step=True), decays
    for r, new, boosted, decay in steps(zip(*each, strict=True), receptance.shape[0]):
        outputs.append(bmm(r.unsqueeze(1), state + boosted).squeeze(1))
        state = decay * state + new
    return stack(outputs, 0, receptance.shape[0]), state
