"""FLOPs of attention's matrix products."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import tokens
from modelbudget.components import context_parallel, scaled_dot_product
from modelbudget.components.attention.attention_conditions import math_for_masks, no_sinks
from modelbudget.components.attention.attention_layout import d_gate, position_of
from modelbudget.components.contract import Values, doubled, valid_if


@valid_if(math_for_masks, no_sinks)
def flops(a: Fields, r: Run, products=scaled_dot_product.FORWARD_PRODUCTS) -> Values:
    """Count the FLOPs of a forward pass.

    Projections, and scaled dot-product attention (`core`): queries by keys and scores by values,
    2·length² operations a channel each; a causal mask saves none of them here. `products`: twice
    the number of these products.
    """
    n, d_query, d_key = tokens(r), a.n_head * a.d_head, a.n_kv_head * a.d_head
    return {
        "query": 2 * n * a.d_model * d_query,
        "gate": a.attention_gate * 2 * n * a.d_model * d_gate(a),
        "key": 2 * n * a.d_model * d_key,
        "value": 2 * n * a.d_model * d_key,
        "output": 2 * n * d_query * a.d_model,
        "core": context_parallel.flops(r, products, d_query),
        **_flops_of_distances(a, r),
    }


def _flops_of_distances(a: Fields, r: Run) -> Values:
    """Relative positions project sinusoids and score them (Dai et al. 2019, §3.3)."""
    if position_of(a) != "relative":
        return {}
    d_query = a.n_head * a.d_head
    return {"position": 2 * r.length * a.d_model * d_query, "": 2 * tokens(r) * r.length * d_query}


def flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, for the gradients of both its factors; sinusoids need no gradient."""
    flops_of_parts = doubled(flops(a, r, scaled_dot_product.backward_products(r)))
    return flops_of_parts | {"position": _flops_of_distances(a, r).get("position", 0)}
