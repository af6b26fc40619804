"""Products of adapters: each function computes the result of a layer.

They have the names that `forward` of a method has (configs/adapters.yaml). Named tensors and their
lifetimes are those of PEFT's layers. Source: peft 0.21.2, lora/bnb.py, lora/dora.py and the
layer.py of tuners/ lora, vera, loha, ia3, adalora, hira, delora, pvera, lokr, oft, miss, road,
hra, fourierft, c3a.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from modelbudget.architecture.adapter_methods import adapter_dtype_of
from modelbudget.architecture.formula_arguments import Run
from modelbudget.operations.autograd import finish_node, start_node, with_node
from modelbudget.operations.einsum import einsum
from modelbudget.operations.elementwise import clone_contiguous, without_gradient
from modelbudget.operations.fourier import circular_convolution, real, transformed_matrix
from modelbudget.operations.hadamard import hadamard_product
from modelbudget.operations.joining import repeat, stack
from modelbudget.operations.memory_layout import is_contiguous, is_unit
from modelbudget.operations.operation import operation
from modelbudget.operations.products import bmm, linear, mm
from modelbudget.operations.reductions import norm, vector_norm
from modelbudget.operations.stored_products import dequantised
from modelbudget.operations.tape import Base, Tensor, empty, view_of
from modelbudget.operations.views import repeat_interleave, unsafe_view

CLONED = ("bnb-4bit", "bnb-4bit-double")
"""Formats whose result PEFT copies before it adds the adapter's (peft/tuners/lora/bnb.py)."""


class Layer(NamedTuple):
    """A target: its base, the run, dropout, and what all targets share."""

    base: Base
    r: Run
    drop: Callable
    shared: dict[str, Tensor]

    @property
    def dtype(self) -> str:
        return adapter_dtype_of(self.r)

    def result(self, x) -> Tensor:
        """Return the result of the base, of which PEFT copies that of some formats."""
        result = self.base.forward(x)
        is_copied = self.base.is_stored and self.r.weights in CLONED
        return result.clone() if is_copied else result


@operation
def add_in_place(x: Tensor, y: Tensor, factor: float = 1.0, is_view: bool = False) -> Tensor:
    """Add a multiple of y to x, which keeps its dtype.

    A view is then one of its changed base, whose gradient is copied in the layout of that base
    (CopySlices, torch/csrc/autograd/functions/tensor.cpp).
    """
    node = start_node("add_", [x, y])
    wants_x = x.needs_gradient

    def gradients(_, g):
        of_x = clone_contiguous(g) if is_view else g
        of_y = clone_contiguous(g) if is_view else g
        return (of_x if wants_x else None), (of_y if factor == 1.0 else of_y * factor)

    z = finish_node(node, view_of(x, x.shape, x.strides), gradients)
    if not is_view:
        return z
    return with_node("as_strided", z.detach(), [z], lambda _, g: clone_contiguous(g))


def add_to_result(base: Base, x: Tensor, result: Tensor, y: Tensor) -> Tensor:
    """Add to the result of a base, which is a view of one matrix where the base has a bias."""
    return add_in_place(result, y, is_view=base.bias is not None and is_contiguous(x))


def low_rank(layer: Layer, x, down, up) -> Tensor:
    """LoRA."""
    result = layer.result(x)
    dtype = result.dtype
    x = x.to(layer.dtype)
    if layer.base.is_stored:
        product = (linear(linear(layer.drop(x), down), up) * 2.0).to(dtype)
        return result + product
    result = result + linear(linear(layer.drop(x), down), up) * 2.0
    return result.to(dtype)


def weight_decomposed(layer: Layer, x, down, up, magnitude) -> Tensor:
    """DoRA."""
    result = layer.result(x)
    dtype = result.dtype
    x = x.to(layer.dtype)
    result = _with_decomposed(layer, x, result, down, up, magnitude)
    return result.to(dtype)


def _with_decomposed(layer: Layer, x, result, *tensors) -> Tensor:
    base_result = result
    if layer.r.adapter_dropout:
        x, base_result = layer.drop(x), None
    return result + _decomposed(layer, x, base_result, *tensors)


def _decomposed(layer: Layer, x, base_result, down, up, magnitude) -> Tensor:
    base = layer.base
    lora_weight = _of_eye(layer, down, up)
    weight = dequantised(base.weight, base.before_copy) if base.is_stored else base.weight
    weight = weight.to(x.dtype)
    norm = vector_norm(weight + lora_weight.detach() * 2.0)
    scale = (magnitude / norm).view((1, base.d_out))
    product = linear(linear(x, down), up)
    if base_result is None:
        base_result = linear(x, weight)
    elif base.bias is not None:
        base_result = base_result - base.bias
    return (scale - 1.0) * base_result + scale * product * 2.0


def _of_eye(layer: Layer, down, up) -> Tensor:
    eye = empty((layer.base.d_in, layer.base.d_in), layer.dtype)
    return linear(linear(eye, down), up).t()


def vectors_of_shared(layer: Layer, x, of_rank, of_output) -> Tensor:
    """VeRA."""
    before, result = x.dtype, layer.result(x)
    dtype = result.dtype
    down = layer.shared["vera_A"].narrow(1, layer.base.d_in)
    up = layer.shared["vera_B"].narrow(0, layer.base.d_out)
    x = x.to(layer.dtype)
    result = result + of_output * linear(of_rank * linear(layer.drop(x), down), up)
    return result.to(dtype).to(before)


def hadamard(layer: Layer, x, *matrices) -> Tensor:
    """LoHa."""
    return _with_change(layer, x, hadamard_product, *matrices)


def _with_change(layer: Layer, x, change_of_weight: Callable, *tensors) -> Tensor:
    """Add the product of a change of the base's weight."""
    dtype, result = x.dtype, layer.base.forward(x)
    result = result + _product(x, change_of_weight, *tensors)
    return result.to(dtype)


def _product(x, change_of_weight: Callable, *tensors) -> Tensor:
    change = change_of_weight(*tensors)
    return linear(x.to(change.dtype), change)


def scaled(layer: Layer, x, vector) -> Tensor:
    """(IA)³."""
    before, scale = x.dtype, vector.flatten() * 1.0
    if layer.base.name == "down":
        x = x.to(vector.dtype)
        inner = (x * scale).to(before)
        return layer.base.forward(inner)
    result = layer.base.forward(x)
    return (result * scale).to(result.dtype)


def singular_values(layer: Layer, x, lora_a, lora_b, lora_e, ranks) -> Tensor:
    """AdaLoRA, without the penalty that its model adds to a loss of a class."""
    result = layer.base.forward(x)
    rank = ranks + 1e-5
    before, x = x, x.to(layer.dtype)
    return add_to_result(
        layer.base,
        before,
        result,
        (layer.drop(x) @ (lora_a * lora_e).t() @ lora_b.t()) * 2.0 / rank,
    )


def hadamard_of_weight(layer: Layer, x, down, up) -> Tensor:
    """HiRA."""
    result = layer.base.forward(x)
    dtype = result.dtype
    product = mm(down.t(), up.t())
    x = x.to(layer.dtype)
    dropped = layer.drop(x)
    change = linear(dropped, layer.base.weight * product.t())
    result = result + change
    return result.to(dtype)


def normalised(layer: Layer, x, down, up, strength, norm_of_columns) -> Tensor:
    """DeLoRA."""
    before = x.dtype
    result = layer.base.forward(x)
    change = without_gradient(result)  # zeros
    change = change.detach()
    dropped = layer.drop(x)
    h = linear(dropped * norm_of_columns, down)
    of_rows, of_columns = norm(down, 1).clamp(), norm(up, 0).clamp()
    scaling = strength / 2.0 / (of_rows * of_columns)
    h = h * scaling
    h = linear(h, up)
    change = add_in_place(change, h)
    result = result + change.to(result.dtype)
    return result.to(before)


def sampled_vectors_of_shared(layer: Layer, x, of_rank, of_output) -> Tensor:
    """PVeRA."""
    before, result = x.dtype, layer.base.forward(x)
    down = layer.shared["pvera_A"].narrow(1, layer.base.d_in)
    up = layer.shared["pvera_B"].narrow(0, layer.base.d_out)
    x = x.to(layer.dtype)
    mean, log_variance = (of_rank * linear(layer.drop(x), down)).chunk(2)
    result = result + of_output * linear(_sampled(mean, log_variance), up)
    return result.to(before)


def _sampled(mean, log_variance) -> Tensor:
    deviation = (log_variance * 0.5).exp()
    noise = without_gradient(deviation)
    return mean + noise * deviation


def kronecker(layer: Layer, x, *factors) -> Tensor:
    """LoKr, with a whole first factor."""
    return _with_change(layer, x, partial(_kronecker_weight, layer.base), *factors)


def _kronecker_weight(base: Base, w1, w2_a, w2_b) -> Tensor:
    w2 = w2_a @ w2_b
    change = _of_factors(w1, w2)
    return change.view((base.d_out, base.d_in))


def _of_factors(w1, w2) -> Tensor:
    (n, m), (rows, columns) = w1.shape, w2.shape
    change = unsafe_view(w1, (n, 1, m, 1)) * unsafe_view(w2, (1, rows, 1, columns))
    change = unsafe_view(change, (n * rows, m * columns))
    return change * 2.0


def rotated_blocks(layer: Layer, x, vectors, rows, columns) -> Tensor:
    """OFT: a rotation of each block of the input, of five terms of a series (Cayley)."""
    before = x.dtype
    x = x.to(layer.dtype)
    x = _rotate(x, vectors, rows, columns)
    result = layer.base.forward(x.to(before))
    return result.to(before)


def _rotate(x, *of_blocks) -> Tensor:
    rotation = _cayley(*of_blocks)
    n_block, size, _ = rotation.shape
    blocks = x.reshape((*x.shape[:-1], n_block, size))
    rotated = einsum("abrk,rkc->abrc", blocks, rotation)
    return rotated.reshape(x.shape)


def _cayley(*of_blocks) -> Tensor:
    skew = _skew_symmetric(*of_blocks)
    n_block, size, _ = skew.shape
    rotation = repeat(empty((1, size, size), skew.dtype), (n_block, 1, 1))
    rotation = add_in_place(rotation, skew, 2.0)
    squared = bmm(skew, skew)
    rotation = add_in_place(rotation, squared, 2.0)
    power = squared
    power = bmm(power, skew)
    rotation = add_in_place(rotation, power, 2.0)
    power = bmm(power, skew)
    return add_in_place(rotation, power)


def _skew_symmetric(vectors, rows, columns) -> Tensor:
    n_block, n = vectors.shape
    size = int((1 + (1 + 8 * n) ** 0.5) / 2)
    matrix = empty((n_block, size, size), vectors.dtype)
    matrix = with_numbers(matrix, vectors, rows, columns)
    return matrix - matrix.transpose(-2, -1)


@operation
def with_numbers(matrix: Tensor, numbers: Tensor, *places: Tensor) -> Tensor:
    """Write numbers into places of zeros, in place. Saves the places; the gradient reads them.

    An assignment leaves out a first dimension of one row (slicePrefix1sSize of
    torch/csrc/autograd/python_variable_indexing.cpp), over which the gradient is summed then.
    """
    shape, dtype = numbers.shape, numbers.dtype
    node = start_node("index_put", [numbers], places)
    y = view_of(matrix, matrix.shape, matrix.strides)

    def gradients(_, g):
        of_numbers = empty(shape, dtype)
        has_one_row = len(shape) > 1 and is_unit(shape[0])
        return of_numbers.sum([0], keepdim=True) if has_one_row else of_numbers

    return finish_node(node, y, gradients)


def summed_shards(layer: Layer, x, block) -> Tensor:
    """MiSS: sums of every r-th number of the input."""
    before = x.dtype
    result = layer.base.forward(x)
    r = block.shape[0]
    x = x.to(layer.dtype)
    shards = (*x.shape[:-1], layer.base.d_in // r, r)
    result = result + layer.drop(x).reshape(shards).sum([-2]) @ block
    return result.to(before)


def rotated_pairs(layer: Layer, x, theta, alpha) -> Tensor:
    """RoAd, variant 1, in groups of two numbers."""
    result = layer.base.forward(x)
    dtype = result.dtype
    result = result.to(layer.dtype)
    result = _rotated(result, theta, alpha)
    return result.to(dtype)


def _rotated(x, *vectors) -> Tensor:
    first, second = _columns(*vectors)
    groups = x.reshape((x.numel() // 2, 2, 1))
    x1, x2 = groups.select(1), groups.select(1)
    half = stack((-x2, x1), 1).reshape(x.shape)
    return x * first + half * second


def _columns(*vectors) -> tuple[Tensor, Tensor]:
    angle, size = (
        repeat_interleave(vector.reshape((vector.shape[0], 1)), 2, 0).flatten()
        for vector in vectors
    )
    cosine, sine = angle.cos(), angle.sin()
    first = size * cosine
    second = size * sine
    return first, second


def reflected(layer: Layer, x, vectors) -> Tensor:
    """HRA: a chain of Householder reflections of the input, one for each rank."""
    base, before = layer.base, x.dtype
    weight = empty((base.d_in, base.d_in), "float32")  # the identity
    change = _reflections(vectors)
    weight = mm(weight.to(change.dtype), change)
    original = base.weight.detach()
    original = original.to(weight.dtype)
    weight = mm(original, weight)
    bias = None if base.bias is None else base.bias.to(weight.dtype)
    x = x.to(weight.dtype)
    result = linear(x, weight, bias)
    return result.to(before)


def _reflections(vectors) -> Tensor:
    d_in, rank = vectors.shape
    units = vectors / norm(vectors, 0)
    weight = empty((d_in, d_in), vectors.dtype)
    for _ in range(rank):
        unit = units.select(1).view((d_in, 1))
        weight = weight - mm(mm(weight * 2.0, unit), unit.t())
    return weight


def spectrum_of_weight(layer: Layer, x, spectrum) -> Tensor:
    """FourierFT."""
    before, result = x.dtype, layer.base.forward(x)
    change = _weight_of_spectrum(layer.base, spectrum)
    x = x.to(change.dtype)
    result = result + linear(x, change)
    return result.to(before)


def _weight_of_spectrum(base: Base, spectrum) -> Tensor:
    places = empty((2, spectrum.shape[0]), "int64")
    dense = empty((base.d_out, base.d_in), "float32")
    dense = with_numbers(dense, spectrum.to("float32"), places)
    change = real(transformed_matrix(dense)) * 2.0
    return change.to(spectrum.dtype)


def circulant(layer: Layer, x, kernel) -> Tensor:
    """C3A, in float32 whatever the dtype of its kernel."""
    before, result = x.dtype, layer.base.forward(x)
    states, x = x, x.to("float32")
    numbers = kernel.to("float32")
    x = circular_convolution(x, numbers) / 2.0
    result = add_to_result(layer.base, states, result, x.to(result.dtype))
    return result.to(before)
