"""Differential attention: the difference of two softmaxes, of pairs of heads.

Ye et al. 2024 (Differential Transformer), §2.1; transformers, `DiffLlamaAttention` in
models/diffllama/modeling_diffllama.py. Each head attends to both halves of the values; a learned
factor weighs the second half of the heads against the first.
"""

from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.fields import Fields, Run
from modelbudget.components.attention.conditions import math_for_masks, no_mask_on_scores
from modelbudget.components.attention.fields import AttentionFields
from modelbudget.components.contract import Values, valid_if
from modelbudget.components.mixers import attention
from modelbudget.memory.adamw_temporaries import Tensor, matrix

GROUP = "attention"
SIZES = ()
FIELDS = AttentionFields

_PRESENT = "'differential_attention' in mixers"
CONSTRAINTS = (
    Constraint(
        "n_head % 2 == 0 and n_kv_head % 2 == 0 and d_head % 2 == 0",
        "n_head = {n_head}, n_kv_head = {n_kv_head}, d_head = {d_head}: differential_attention in "
        "mixers needs even numbers",
        when=_PRESENT,
    ),
    Constraint(
        "position in ('none', 'rotary')",
        "position = '{position}': differential_attention in mixers allows none or rotary",
        when=_PRESENT,
    ),
    *(
        Constraint(
            without,
            f"{name} = {{{name}}}: differential_attention in mixers has no such option",
            when=_PRESENT,
        )
        for name, without in (
            ("qk_norm", "qk_norm == 'none'"),
            ("inner_norm", "not inner_norm"),
            ("sinks", "not sinks"),
            ("attention_gate", "not attention_gate"),
        )
    ),
)


def parameters(a: Fields) -> Values:
    """Count those of attention, and the four vectors that make the factor (§2.1, eq. 2)."""
    return attention.parameters(a) | {"factor": 4 * a.d_head}


def tensors(a: Fields) -> list[Tensor]:
    """Return the factor's vectors as one matrix, and the tensors of attention."""
    return [matrix("factor", 4, a.d_head), *attention.tensors(a)]


def _both_halves(values: Values) -> Values:
    return values | {"core": 2 * values["core"]}


@valid_if(math_for_masks)
def flops(a: Fields, r: Run) -> Values:
    """Projections, and scaled dot-product attention to both halves of the values."""
    return _both_halves(attention.flops(a, r))


@valid_if(math_for_masks)
def flops_backward(a: Fields, r: Run) -> Values:
    """As attention, with both halves of the values."""
    return _both_halves(attention.flops_backward(a, r))


def flops_recomputed(a: Fields, r: Run) -> Values:
    """As attention, with both halves of the values."""
    again = attention.flops_recomputed(a, r)
    return _both_halves(again) if again else again


@valid_if(no_mask_on_scores)
def flops_decode(a: Fields, r: Run) -> Values:
    """As attention, with both halves of the values."""
    return _both_halves(attention.flops_decode(a, r))


def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of keys and values, as many as of attention."""
    return attention.cache(a, r)
