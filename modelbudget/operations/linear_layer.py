"""The linear layer of all parts, with the format of its weights and the adapter of the run."""

from __future__ import annotations

from modelbudget.operations.accumulated_linear import accumulated_linear, declare_buffered
from modelbudget.operations.part import Part, make_part, parameter
from modelbudget.operations.products import linear
from modelbudget.operations.quantised import quantised_linear
from modelbudget.operations.tape import Active


def make_linear(name: str, d_in, d_out, bias: bool = False, accumulates: bool = False) -> Part:
    """Make a linear layer: a weight (d_out, d_in), and a bias (d_out).

    `accumulates`: its product adds the gradient of the weight to a buffer.
    """
    adapter, weight_format = Active.tape.adapter, Active.tape.weight_format

    def make():
        is_stored = weight_format is not None and weight_format.converts(Active.tape.scope)
        forward = stored(weight_format) if is_stored else dense()
        return forward if adapter is None else adapter.around(name, forward, d_in, d_out)

    def dense():
        weight = parameter("weight", d_out, d_in)
        shift = parameter("bias", d_out) if bias else None
        if accumulates:
            declare_buffered(weight)
            return lambda x: accumulated_linear(x, weight, shift)
        return lambda x: linear(x, weight, shift)

    def stored(weight_format):
        n_bytes = weight_format.n_bytes(d_in, d_out)
        weight = parameter("weight", d_out, d_in, is_trained=False, n_bytes=n_bytes)
        shift = parameter("bias", d_out) if bias else None
        n_nested_scale = weight_format.n_nested_scale(d_in, d_out)
        return lambda x: quantised_linear(x, weight, shift, n_nested_scale)

    return make_part(name, make)
