"""The linear layer of all parts, with the format of its weights and the adapter of the run."""

from __future__ import annotations

from modelbudget.operations.accumulated_linear import accumulated_linear, declare_buffered
from modelbudget.operations.elementwise import to
from modelbudget.operations.part import Part, make_part, parameter
from modelbudget.operations.products import linear
from modelbudget.operations.quantised import quantised_linear
from modelbudget.operations.tape import Active, Base


def make_linear(name: str, d_in, d_out, bias: bool = False, accumulates: bool = False) -> Part:
    """Make a linear layer: a weight (d_out, d_in), and a bias (d_out).

    `accumulates`: its product adds the gradient of the weight to a buffer.
    """
    adapter, weight_format = Active.tape.adapter, Active.tape.weight_format

    def make():
        is_stored = weight_format is not None and weight_format.converts(Active.tape.scope)
        base = stored(weight_format) if is_stored else dense()
        return base.forward if adapter is None else adapter.around(base)

    def dense() -> Base:
        weight = parameter("weight", d_out, d_in)
        shift = parameter("bias", d_out) if bias else None
        if accumulates:
            declare_buffered(weight)
            return Base(
                name, lambda x: accumulated_linear(x, weight, shift), weight, shift, d_in, d_out
            )
        return Base(name, lambda x: linear(x, weight, shift), weight, shift, d_in, d_out)

    def stored(weight_format) -> Base:
        n_bytes = weight_format.n_bytes(d_in, d_out)
        weight = parameter("weight", d_out, d_in, is_trained=False, n_bytes=n_bytes)
        weight.dtype = weight_format.compute_dtype
        shift = parameter("bias", d_out) if bias else None
        n_nested_scale = weight_format.n_nested_scale(d_in, d_out)

        def forward(x):
            # In its dtype, whatever the dtype of what layers hand on.
            dtype, x = x.dtype, to(x, weight.dtype)
            cast = None if shift is None else to(shift, weight.dtype)
            return to(quantised_linear(x, weight, cast, n_nested_scale), dtype)

        return Base(name, forward, weight, shift, d_in, d_out, is_stored=True)

    return make_part(name, make)
