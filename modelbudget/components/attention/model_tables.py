"""What the model makes once for all layers: tables of RoPE, positions."""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_pattern import instances
from modelbudget.architecture.run_values import INDEX
from modelbudget.components import rope
from modelbudget.components.attention.attention_layout import d_rotary, has_rope, own_tables


def _n_rope(a: Fields, r: Run):
    """Count the layers with a RoPE of which the model gives the tables or the positions."""
    if not has_rope(a) or own_tables(a, r):
        return 0
    n_layer = instances(a.mixers, a.n_layer)
    return sum(n_layer.get(name, 0) for name in ("attention", "sliding_attention"))


def _shares_tables(a: Fields, r: Run):
    """1 where layers share the tables of RoPE: some of them have attention."""
    return int(r.rope_tables == "model") * positive(_n_rope(a, r))


def model_tables(a: Fields, r: Run):
    """Bytes of the tables of RoPE that all layers share; 0 if each makes its own."""
    return _shares_tables(a, r) * 2 * rope.tables(r, d_rotary(a))


def model_frequencies(a: Fields, r: Run):
    """Bytes of the frequencies of such tables, as they are used and before any scaling."""
    return _shares_tables(a, r) * rope.ANGLE * d_rotary(a)


def model_positions(a: Fields, r: Run, length):
    """Bytes of the positions of `length` tokens, which are live as long as such tables."""
    return positive(_n_rope(a, r)) * INDEX * length
