"""How a run lays out attention: positions, RoPE and its tables, packed projections, scores."""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import INDEX, exchanges_context
from modelbudget.components import norm, rope, scaled_dot_product


def position_of(a: Fields) -> str:
    """Return the position embedding; families without positions have no such field."""
    return getattr(a, "position", "none")


def has_rope(a: Fields) -> int:
    return int(position_of(a) == "rotary")


def d_rotary(a: Fields):
    if not has_rope(a):
        return 0
    return a.d_rotary + (1 - positive(a.d_rotary)) * a.d_head


def d_gate(a: Fields):
    """Return the width of the projection that gates the result, if there is one."""
    return a.n_head * (a.d_head - a.gate_per_head * (a.d_head - 1))


def own_tables(a: Fields, r: Run) -> int:
    """1 where each layer makes the tables of RoPE."""
    return int(r.rope_tables == "layer")


def heads(a: Fields, r: Run) -> scaled_dot_product.Heads:
    """Return the inputs of attention, of three projections; exchanged ones are per token."""
    by_head = has_rope(a) * own_tables(a, r) * (1 - exchanges_context(r))
    return scaled_dot_product.Heads(a.n_head, a.n_kv_head, a.d_head, a.d_head, a.d_head, by_head)


def n_normalised(a: Fields, n_head):
    """Return of how many heads a norm has parameters: also of those that other devices compute."""
    return n_head * (getattr(a, "n_sharing_heads", 1) if a.qk_norm == "joint" else 1)


def n_vectors(a: Fields, n_token, n_head):
    return n_token * (1 if a.qk_norm == "joint" else n_head)


def scaled_apart(a: Fields, r: Run):
    """1 where the scale is a multiplication of its own after the norm, and saves its input."""
    return int(a.qk_norm == "separate") * (1 - norm.is_written_out(a, r)) * a.norm_scale


def _shares_tables(a: Fields, r: Run) -> int:
    """1 where layers share the tables of RoPE."""
    return int(r.rope_tables == "model") * has_rope(a)


def model_tables(a: Fields, r: Run):
    """Bytes of the tables of RoPE that all layers share; 0 if each makes its own."""
    return _shares_tables(a, r) * 2 * rope.tables(r, d_rotary(a))


def model_frequencies(a: Fields, r: Run):
    """Bytes of the frequencies of such tables, as they are used and before any scaling."""
    return _shares_tables(a, r) * rope.ANGLE * d_rotary(a)


def model_positions(a: Fields, r: Run):
    """Bytes of the positions of all tokens, which are live as long as such tables."""
    return _shares_tables(a, r) * INDEX * r.length
