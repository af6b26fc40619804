"""The linear layer of all parts, with the format of its weights and the adapter of the run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from modelbudget.operations.accumulated_linear import accumulated_linear, declare_buffered
from modelbudget.operations.part import NotComputedError, Part, make_part, parameter
from modelbudget.operations.products import linear
from modelbudget.operations.stored_products import int8_linear, quantised_linear
from modelbudget.operations.tape import BYTES, Active, Base, Tensor


def make_linear(name: str, d_in, d_out, bias: bool = False, accumulates: bool = False) -> Part:
    """Make a linear layer: a weight (d_out, d_in), and a bias (d_out).

    `accumulates`: its product adds the gradient of the weight to a buffer.
    """
    adapter, weight_format = Active.tape.adapter, Active.tape.weight_format

    def make():
        is_stored = weight_format is not None and weight_format.stores(
            Active.tape.scope, d_in, d_out
        )
        base = stored(weight_format) if is_stored else dense()
        return base.forward if adapter is None else adapter.around(base)

    def dense() -> Base:
        weight = parameter("weight", d_out, d_in)
        shift = parameter("bias", d_out) if bias else None
        product = product_of(weight, accumulates)
        return Base(name, lambda x: product(x, weight, shift), weight, shift, d_in, d_out)

    def stored(weight_format) -> Base:
        weight, shift = stored_parameters(weight_format, (d_out, d_in), bias)
        product = stored_product(weight_format, weight)
        before_copy = weight_format.made_for_product(d_in, d_out)
        forward = partial(product, weight=weight, bias=shift)
        return Base(name, forward, weight, shift, d_in, d_out, True, before_copy)

    return make_part(name, make)


def product_of(weight: Tensor, accumulates: bool) -> Callable:
    """Return the product with the matrix of the part that is being made."""
    tape = Active.tape
    length = None if tape.divided is None else tape.divided.length_of(tape.scope)
    if accumulates:
        declare_buffered(weight)
    if not accumulates and length is None:
        return linear
    return partial(accumulated_linear, length=length, accumulates=accumulates)


def stored_parameters(weight_format, shape, has_bias: bool, n=1) -> tuple[Tensor, Tensor | None]:
    """Declare a matrix, or a stack of n, in the format of the run, and its bias if it has one."""
    _refuse_to_train(has_bias)
    n_bytes, of_bias = weight_format.n_bytes(shape[-1], shape[-2], has_bias)
    sharded = Active.tape.sharded
    if sharded is None:
        weight = parameter("weight", *shape, is_trained=False, n_bytes=n * n_bytes)
    else:  # devices divide the packed numbers; scales are whole on each
        packed = weight_format.in_shards(shape[-1], shape[-2])
        divided = BYTES[weight_format.compute_dtype] * packed
        weight = parameter("weight", *shape, is_trained=False, n_bytes=n * divided)
        scales = parameter("weight", 0, is_trained=False, n_bytes=n * (n_bytes - divided))
        sharded.packed[weight], sharded.rows_of[scales] = n * packed, scales
    weight.dtype = weight_format.compute_dtype
    if of_bias is None:
        return weight, parameter("bias", *shape[:-1]) if has_bias else None
    if not of_bias:
        return weight, None
    shift = parameter("bias", *shape[:-1], is_trained=False, n_bytes=n * of_bias)
    shift.dtype = weight_format.bias_dtype
    return weight, shift


def _refuse_to_train(has_bias: bool) -> None:
    """Raise NotComputedError if the run trains the part that is being made, or a copy of it."""
    adapter, component = Active.tape.adapter, Active.tape.scope
    if adapter is None:
        return
    is_trained = adapter.trains(component, has_bias)
    if is_trained or adapter.copies(component):
        setting = "trained" if is_trained else "modules_to_save"
        raise NotComputedError(f"{setting} = {component}: it is quantised")


def stored_product(weight_format, weight: Tensor) -> Callable:
    """Return the product with a stored matrix, in its dtype whatever that of the states."""
    d_out, d_in = weight.shape
    before_copy = weight_format.made_for_product(d_in, d_out)
    n_without_copy = weight_format.stored.n_without_copy

    def product_of_8_bits(x, weight, bias):
        return int8_linear(x, weight)  # adds the bias in place

    def product(x, weight, bias):
        dtype, x = x.dtype, x.to(weight.dtype)
        cast = None if bias is None else bias.to(weight.dtype)
        return quantised_linear(x, weight, cast, before_copy, n_without_copy).to(dtype)

    return product_of_8_bits if weight_format.stored.product == "int8" else product
