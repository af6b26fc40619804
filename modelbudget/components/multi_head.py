"""Multi-head attention of encoders and encoder–decoders.

Every query head has its own keys and values, of its own sequence or of another (cross-attention).
"""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Parts
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import bytes_of, tokens
from modelbudget.components import rope, scaled_dot_product
from modelbudget.components.contract import Values, doubled
from modelbudget.memory.parameter_tensors import Tensor, linear_tensors


class MultiHeadFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    n_head: Parts = Field(description="heads, each with its own queries, keys and values")
    d_head: Count = Field(description="width of one head's queries and keys")
    d_value: Count = Field(description="width of one head's values")
    attention_bias: bool = Field(True, description="the projections add a bias")
    key_bias: bool = Field(
        True, description="with attention_bias, the projection of keys adds one too"
    )

    derived: ClassVar[dict[str, str]] = {"d_head": "d_model / n_head", "d_value": "d_head"}


def parameters(a) -> dict:
    """Count the parameters of the four projections (Vaswani et al. 2017, §3.2.2).

    W^Q and W^K have d_k columns a head, W^V has d_v.
    """
    d_query, d_value = a.n_head * a.d_head, a.n_head * a.d_value
    bias = a.attention_bias * d_query
    return {
        "query": a.d_model * d_query + bias,
        "key": a.d_model * d_query + a.key_bias * bias,
        "value": a.d_model * d_value + a.attention_bias * d_value,
        "output": d_value * a.d_model + a.attention_bias * a.d_model,
    }


def tensors(a: Fields) -> list[Tensor]:
    """Weights and biases of the projections."""
    d_query, d_value = a.n_head * a.d_head, a.n_head * a.d_value
    return [
        *linear_tensors("query", a.d_model, d_query, a.attention_bias),
        *linear_tensors("key", a.d_model, d_query, a.attention_bias * a.key_bias),
        *linear_tensors("value", a.d_model, d_value, a.attention_bias),
        *linear_tensors("output", d_value, a.d_model, a.attention_bias),
    ]


def saved(a: Fields, r: Run, rotary: int = 0) -> Values:
    """Return the bytes saved for backward, as in a decoder's attention; `rotary`: 1 with RoPE.

    The input, which query, key and value share; RoPE's tables; scaled dot-product attention, where
    a causal mask and what is added to the scores make no difference; the input of the output
    projection, where it is a copy. Cross-attention saves the states that it attends besides.
    """
    heads = scaled_dot_product.Heads(a.n_head, a.n_head, a.d_head, a.d_value, a.d_value, rotary)
    return {
        "query": bytes_of(r.dtype) * tokens(r) * a.d_model,
        "": 2 * rotary * rope.tables(r, a.d_head) + scaled_dot_product.saved(heads, r),
        "output": scaled_dot_product.copied_result(heads, r),
    }


def flops(a: Fields, r: Run) -> Values:
    """Count the FLOPs of projections, and of the products of queries by keys, scores by values."""
    products = r.length * a.n_head * (a.d_head + a.d_value)
    return {**_projections(a, r), "": 2 * tokens(r) * products}


def flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, for the gradients of both its factors.

    Fused kernels compute the scores again (Dao 2024, §3.1.2).
    """
    n_key = 2 if r.attention_kernel == "math" else 3
    products = r.length * a.n_head * (n_key * a.d_head + 2 * a.d_value)
    return {**doubled(_projections(a, r)), "": 2 * tokens(r) * products}


def _projections(a: Fields, r: Run) -> Values:
    query, value = (2 * tokens(r) * a.d_model * a.n_head * width for width in (a.d_head, a.d_value))
    return {"query": query, "key": query, "value": value, "output": value}


def same_widths(a: Fields, r: Run):
    """1 where values are as wide as queries and keys, as fused kernels need them, else 0."""
    differ = positive(a.d_head - a.d_value) + positive(a.d_value - a.d_head)
    return 1 - int(r.attention_kernel != "math") * differ
