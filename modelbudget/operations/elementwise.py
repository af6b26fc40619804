"""Elementwise operations: sums, products, activation functions, casts, dropout.

Source of the gradients and of what each saves: tools/autograd/derivatives.yaml.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from modelbudget.operations.autograd import by_input, factors, finish_node, start_node, with_node
from modelbudget.operations.memory_layout import (
    broadcast,
    empty_elementwise,
    empty_like,
    is_contiguous,
    promoted,
)
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import Tensor, contiguous_strides, empty, view_of


@operation
def add(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        return with_node("add", empty_elementwise(x.dtype, x), [x], lambda _, g: g)
    z = empty_elementwise(promoted(x, y), x, y)
    return with_node("add", z, [x, y], by_input({0: lambda _, g: g, 1: lambda _, g: g}))


@operation
def sub(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        return with_node("sub", empty_elementwise(x.dtype, x), [x], lambda _, g: g)
    z = empty_elementwise(promoted(x, y), x, y)
    return with_node("sub", z, [x, y], by_input({0: lambda _, g: g, 1: lambda _, g: neg(g)}))


@operation
def one_minus(x: Tensor) -> Tensor:
    """1 - x (`rsub`)."""
    return with_node("rsub", empty_elementwise(x.dtype, x), [x], lambda _, g: neg(g))


@operation
def neg(x: Tensor) -> Tensor:
    return with_node("neg", empty_elementwise(x.dtype, x), [x], lambda _, g: neg(g))


@operation
def mul(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Save each factor that the gradient of the other needs."""
    if not isinstance(x, Tensor):
        x, y = y, x
    assert isinstance(x, Tensor)
    if not isinstance(y, Tensor):  # a number is not saved
        return with_node("mul", empty_elementwise(x.dtype, x), [x], lambda _, g: mul(g, 1.0))
    node = start_node("mul", [x, y], factors(x, y))
    z = empty_elementwise(promoted(x, y), x, y)
    gradients = {
        1: lambda saved, g: mul(g, conjugate(saved[0])),
        0: lambda saved, g: mul(g, conjugate(saved[1])),
    }
    return finish_node(node, z, by_input(gradients))


def conjugate(x: Tensor) -> Tensor:
    """Return x itself if it is real, else a copy that lives until it has been read."""
    return empty_like(x) if x.dtype.startswith("complex") else x


@operation
def div(x: Tensor, y: Tensor | float) -> Tensor:
    if not isinstance(y, Tensor):
        return with_node("div", empty_elementwise(x.dtype, x), [x], lambda _, g: div(g, 1.0))
    node = start_node("div", [x, y], [x if y.needs_gradient else None, y])
    z = empty_elementwise(promoted(x, y), x, y)
    gradients = {
        1: lambda saved, g: _gradient_of_divisor(g, *saved),
        0: lambda saved, g: div(g, saved[1]),
    }
    return finish_node(node, z, by_input(gradients))


def _gradient_of_divisor(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """-g · ((x / y) / y): a C++ expression, whose intermediate results live to its end."""
    negative = neg(g)
    quotient = div(x, y)
    quotient_of_quotient = div(quotient, y)
    return mul(negative, quotient_of_quotient)


def _unary(
    name: str,
    saves: Literal["input", "result"],
    gradient: Callable[[Tensor, Tensor], Tensor] | None = None,
    autocast: Literal["float32"] | None = None,
) -> Callable[[Tensor], Tensor]:
    """Make an operation by what it saves, and the gradient from that of its result and the saved.

    By default the gradient is one operation, `_unary_backward`.
    """
    backward = gradient or _unary_backward

    def apply(x: Tensor) -> Tensor:
        node = start_node(name, [x], [x] if saves == "input" else [])
        y = empty_elementwise(x.dtype, x)
        saved = [y] if saves == "result" else []
        return finish_node(node, y, lambda saved, g: backward(g, saved[0]), saved)

    apply.__name__ = name
    return operation(apply, autocast=autocast)


@operation
def _unary_backward(g: Tensor, saved: Tensor) -> Tensor:
    """Order the result's dimensions as those of the first operand."""
    return empty_elementwise(g.dtype, g, saved)


def _saved_first(g: Tensor, saved: Tensor) -> Tensor:
    return _unary_backward(saved, g)


def _of_cos(g: Tensor, x: Tensor) -> Tensor:
    """g · (−sin x): both live to the end."""
    sine = without_gradient(x)
    negative = neg(sine)
    return mul(g, negative)


def _of_known_factor(g: Tensor, x: Tensor) -> Tensor:
    """g times the cosine, or the sign, of x, which lives to the end."""
    factor = without_gradient(x)
    return mul(g, factor)


def _of_expm1(g: Tensor, y: Tensor) -> Tensor:
    shifted = add(y, 1.0)
    return mul(g, shifted)


def _of_sqrt(g: Tensor, y: Tensor) -> Tensor:
    doubled = mul(y, 2.0)
    return div(g, doubled)


def _of_rsqrt(g: Tensor, y: Tensor) -> Tensor:
    half = mul(g, -0.5)
    cube = power(y, 3)
    return mul(half, cube)


silu = _unary("silu", "input")
gelu = _unary("gelu", "input")
# threshold_backward (aten/src/ATen/native/Activation.cpp) has the gradient as its second operand.
relu = _unary("relu", "result", _saved_first)
sigmoid = _unary("sigmoid", "result")
tanh = _unary("tanh", "result")
# On meta, where traces run, in this order (torch/_decomp/decompositions.py); in C++ in the other.
softplus = _unary("softplus", "input", _saved_first, autocast="float32")
exp = _unary("exp", "result", lambda g, y: mul(g, y), autocast="float32")
expm1 = _unary("expm1", "result", _of_expm1)
cos = _unary("cos", "input", _of_cos)
sin = _unary("sin", "input", _of_known_factor)
absolute = _unary("abs", "input", _of_known_factor)
sqrt = _unary("sqrt", "result", _of_sqrt)
rsqrt = _unary("rsqrt", "result", _of_rsqrt, autocast="float32")


@operation
def clamp(x: Tensor, n_bound: int = 1) -> Tensor:
    """Replace numbers beyond bounds by them. Saves x; the gradient is 0 there."""
    node = start_node("clamp", [x], [x])

    def gradients(saved, g):
        zero = empty((), g.dtype)
        is_within, *_other = (compare(saved[0]) for _ in range(n_bound))
        return empty_elementwise(g.dtype, is_within, g)

    return finish_node(node, empty_elementwise(x.dtype, x), gradients)


@operation
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Choose from x or y. Saves the condition; a gradient is 0 where the other was chosen."""
    node = start_node("where", [x, y], [condition])
    z = empty_elementwise(promoted(x, y), condition, x, y)
    return finish_node(node, z, by_input({0: _where_or_zero, 1: _where_or_zero}))


def _where_or_zero(saved: list[Tensor], g: Tensor) -> Tensor:
    zero = empty((), g.dtype)  # the number 0 becomes a tensor
    return empty_elementwise(g.dtype, *saved, g)


@operation(autocast="float32")
def power(x: Tensor, exponent: float) -> Tensor:
    node = start_node("pow", [x], [x])
    y = empty_elementwise(x.dtype, x)

    def gradients(saved, g):
        (x,) = saved
        lower = power(x, exponent - 1)  # both live to the end of the expression
        scaled = mul(lower, exponent)
        return mul(g, scaled)

    return finish_node(node, y, gradients)


@operation
def compare(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Compare or combine truth values; there is no gradient."""
    return empty_elementwise("bool", *(operand for operand in (x, y) if operand is not None))


@operation
def maximum(x: Tensor, y: Tensor) -> Tensor:
    """Return the larger number of each pair; equal ones share the gradient."""
    node = start_node("maximum", [x, y], [x, y])
    z = empty_elementwise(promoted(x, y), x, y)
    return finish_node(node, z, by_input({1: _gradient_of_largest, 0: _gradient_of_largest}))


def _gradient_of_largest(saved: list[Tensor], g: Tensor) -> Tensor:
    """where(x == y, g / 2, g), filled with 0 where x is smaller: all lives to the end."""
    half = div(g, 2.0)
    is_equal = compare(*saved)
    result = empty_elementwise(g.dtype, is_equal, half, g)
    is_smaller = compare(*saved)
    return result


@operation
def log_sigmoid(x: Tensor) -> Tensor:
    """Save the argument, and a buffer as large, which a kernel of a GPU does without.

    Source: aten/src/ATen/native/Activation.cpp; on meta torch/_decomp/decompositions.py.
    """
    node = start_node("log_sigmoid", [x], [x])
    y, buffer = empty_elementwise(x.dtype, x), empty_elementwise(x.dtype, x)

    return finish_node(node, y, lambda saved, g: log_sigmoid_backward(g), [buffer])


@operation
def log_sigmoid_backward(g: Tensor) -> Tensor:
    """Multiply by the derivative, which is contiguous."""
    derivative = view_of(g, g.shape, contiguous_strides(g.shape))
    return empty_elementwise(g.dtype, g, derivative)


@operation
def masked_fill(x: Tensor, mask: Tensor) -> Tensor:
    """Fill a contiguous copy (aten/src/ATen/native/TensorAdvancedIndexing.cpp)."""
    node = start_node("masked_fill", [x], [mask])
    z = empty(broadcast(x.shape, mask.shape), x.dtype)
    return finish_node(node, z, lambda saved, g: masked_fill(g, saved[0]))


@operation
def without_gradient(x: Tensor, dtype: str | None = None) -> Tensor:
    """Apply any elementwise operation of which nothing needs a gradient."""
    return empty_elementwise(dtype or x.dtype, x)


@operation
def to(x: Tensor, dtype: str) -> Tensor:
    """Cast; return x itself if it has the dtype."""
    if x.dtype == dtype:
        return x
    before = x.dtype
    return with_node("to", empty_like(x, dtype), [x], lambda _, g: to(g, before))


def contiguous(x: Tensor) -> Tensor:
    """Return x itself if it is contiguous, else a copy."""
    return x if is_contiguous(x) else clone_contiguous(x)


@operation
def clone_contiguous(x: Tensor) -> Tensor:
    return with_node("clone", empty(x.shape, x.dtype), [x], lambda _, g: g)


@operation
def clone(x: Tensor) -> Tensor:
    return with_node("clone", empty_like(x), [x], lambda _, g: g)


@operation
def dropout(x: Tensor, is_on: bool = True, backend: str = "gpu") -> Tensor:
    """Save a byte a number, as a GPU's native_dropout does; a CPU saves the factor of each.

    Source: aten/src/ATen/native/Dropout.cpp, cuda/Dropout.cu.
    """
    if not is_on:
        return x
    if backend == "cpu":
        factors = empty_like(x)  # random, then divided in place
        return mul(x, factors)
    y, mask = empty_like(x), empty_like(x, "bool")
    return with_node("dropout", y, [x], lambda saved, g: native_dropout_backward(g), [mask])


@operation
def native_dropout_backward(g: Tensor) -> Tensor:
    return empty(g.shape, g.dtype)
