"""Products of adapters: each function returns the forward function of a layer.

They have the names that `forward` of a method has (configs/adapters.yaml). Named tensors and their
lifetimes are those of PEFT's layers. Source: peft 0.21.2, lora/bnb.py, lora/dora.py and the
layer.py of tuners/ lora, vera, loha, ia3, adalora, hira, delora, pvera, lokr, oft, miss, road,
hra, fourierft, c3a.
"""

from collections.abc import Callable
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
from modelbudget.operations.part import NoProgramError
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


def low_rank(layer: Layer, down, up) -> Callable:
    """LoRA."""

    def forward(x):
        result = layer.result(x)
        dtype = result.dtype
        x = x.to(layer.dtype)
        if layer.base.is_stored:
            product = (linear(linear(layer.drop(x), down), up) * 2.0).to(dtype)
            return result + product
        result = result + linear(linear(layer.drop(x), down), up) * 2.0
        return result.to(dtype)

    return forward


def weight_decomposed(layer: Layer, down, up, magnitude) -> Callable:
    """DoRA."""
    base = layer.base
    if base.weight.needs_gradient:
        raise NoProgramError(f"adapter: dora: around trained: {layer.r.trained}")

    def forward(x):
        result = layer.result(x)
        dtype = result.dtype
        x = x.to(layer.dtype)
        result = with_change(x, result)
        return result.to(dtype)

    def with_change(x, result):
        base_result = result
        if layer.r.adapter_dropout:
            x, base_result = layer.drop(x), None
        return result + decomposed(x, base_result)

    def decomposed(x, base_result):
        lora_weight = of_eye()
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

    def of_eye():
        eye = empty((base.d_in, base.d_in), layer.dtype)
        return linear(linear(eye, down), up).t()

    return forward


def vectors_of_shared(layer: Layer, of_rank, of_output) -> Callable:
    """VeRA."""

    def forward(x):
        before, result = x.dtype, layer.result(x)
        dtype = result.dtype
        down = layer.shared["vera_A"].narrow(1, layer.base.d_in)
        up = layer.shared["vera_B"].narrow(0, layer.base.d_out)
        x = x.to(layer.dtype)
        result = result + of_output * linear(of_rank * linear(layer.drop(x), down), up)
        return result.to(dtype).to(before)

    return forward


def hadamard(layer: Layer, *matrices) -> Callable:
    """LoHa."""
    return _with_change(layer, lambda: hadamard_product(*matrices))


def _with_change(layer: Layer, change_of_weight: Callable) -> Callable:
    """Add the product of a change of the base's weight."""

    def forward(x):
        dtype, result = x.dtype, layer.base.forward(x)
        result = result + product(x)
        return result.to(dtype)

    def product(x):
        change = change_of_weight()
        return linear(x.to(change.dtype), change)

    return forward


def scaled(layer: Layer, vector) -> Callable:
    """(IA)³."""

    def forward(x):
        before, scale = x.dtype, vector.flatten() * 1.0
        if layer.base.name == "down":
            x = x.to(vector.dtype)
            inner = (x * scale).to(before)
            return layer.base.forward(inner)
        result = layer.base.forward(x)
        return (result * scale).to(result.dtype)

    return forward


def singular_values(layer: Layer, lora_a, lora_b, lora_e, ranks) -> Callable:
    """AdaLoRA, without the penalty that its model adds to a loss of a class."""

    def forward(x):
        result = layer.base.forward(x)
        rank = ranks + 1e-5
        before, x = x, x.to(layer.dtype)
        return add_to_result(
            layer.base,
            before,
            result,
            (layer.drop(x) @ (lora_a * lora_e).t() @ lora_b.t()) * 2.0 / rank,
        )

    return forward


def hadamard_of_weight(layer: Layer, down, up) -> Callable:
    """HiRA."""

    def forward(x):
        result = layer.base.forward(x)
        dtype = result.dtype
        product = mm(down.t(), up.t())
        x = x.to(layer.dtype)
        dropped = layer.drop(x)
        change = linear(dropped, layer.base.weight * product.t())
        result = result + change
        return result.to(dtype)

    return forward


def normalised(layer: Layer, down, up, strength, norm_of_columns) -> Callable:
    """DeLoRA."""

    def forward(x):
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

    return forward


def sampled_vectors_of_shared(layer: Layer, of_rank, of_output) -> Callable:
    """PVeRA."""

    def forward(x):
        before, result = x.dtype, layer.base.forward(x)
        down = layer.shared["pvera_A"].narrow(1, layer.base.d_in)
        up = layer.shared["pvera_B"].narrow(0, layer.base.d_out)
        x = x.to(layer.dtype)
        mean, log_variance = (of_rank * linear(layer.drop(x), down)).chunk(2)
        result = result + of_output * linear(sampled(mean, log_variance), up)
        return result.to(before)

    def sampled(mean, log_variance):
        deviation = (log_variance * 0.5).exp()
        noise = without_gradient(deviation)
        return mean + noise * deviation

    return forward


def kronecker(layer: Layer, w1, w2_a, w2_b) -> Callable:
    """LoKr, with a whole first factor."""

    def weight():
        w2 = w2_a @ w2_b
        change = of_factors(w2)
        return change.view((layer.base.d_out, layer.base.d_in))

    def of_factors(w2):
        (n, m), (rows, columns) = w1.shape, w2.shape
        change = unsafe_view(w1, (n, 1, m, 1)) * unsafe_view(w2, (1, rows, 1, columns))
        change = unsafe_view(change, (n * rows, m * columns))
        return change * 2.0

    return _with_change(layer, weight)


def rotated_blocks(layer: Layer, vectors, rows, columns) -> Callable:
    """OFT: a rotation of each block of the input, of five terms of a series (Cayley)."""
    n_block, n = vectors.shape
    size = int((1 + (1 + 8 * n) ** 0.5) / 2)

    def forward(x):
        before = x.dtype
        x = x.to(layer.dtype)
        x = rotate(x)
        result = layer.base.forward(x.to(before))
        return result.to(before)

    def rotate(x):
        rotation = cayley()
        blocks = x.reshape((*x.shape[:-1], n_block, size))
        rotated = einsum("abrk,rkc->abrc", blocks, rotation)
        return rotated.reshape(x.shape)

    def cayley():
        skew = skew_symmetric()
        rotation = repeat(empty((1, size, size), layer.dtype), (n_block, 1, 1))
        rotation = add_in_place(rotation, skew, 2.0)
        squared = bmm(skew, skew)
        rotation = add_in_place(rotation, squared, 2.0)
        power = squared
        power = bmm(power, skew)
        rotation = add_in_place(rotation, power, 2.0)
        power = bmm(power, skew)
        return add_in_place(rotation, power)

    def skew_symmetric():
        matrix = empty((n_block, size, size), layer.dtype)
        matrix = with_numbers(matrix, vectors, rows, columns)
        return matrix - matrix.transpose(-2, -1)

    return forward


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


def summed_shards(layer: Layer, block) -> Callable:
    """MiSS: sums of every r-th number of the input."""

    def forward(x):
        before = x.dtype
        result = layer.base.forward(x)
        r = block.shape[0]
        x = x.to(layer.dtype)
        shards = (*x.shape[:-1], layer.base.d_in // r, r)
        result = result + layer.drop(x).reshape(shards).sum([-2]) @ block
        return result.to(before)

    return forward


def rotated_pairs(layer: Layer, theta, alpha) -> Callable:
    """RoAd, variant 1, in groups of two numbers."""

    def forward(x):
        result = layer.base.forward(x)
        dtype = result.dtype
        result = result.to(layer.dtype)
        result = rotated(result)
        return result.to(dtype)

    def columns():
        angle, size = pairs(theta), pairs(alpha)
        cosine, sine = angle.cos(), angle.sin()
        first = size * cosine
        second = size * sine
        return first, second

    def pairs(x):
        return repeat_interleave(x.reshape((x.shape[0], 1)), 2, 0).flatten()

    def rotated(x):
        first, second = columns()
        groups = x.reshape((x.numel() // 2, 2, 1))
        x1, x2 = groups.select(1), groups.select(1)
        half = stack((-x2, x1), 1).reshape(x.shape)
        return x * first + half * second

    return forward


def reflected(layer: Layer, vectors) -> Callable:
    """HRA: a chain of Householder reflections of the input, one for each rank."""
    base = layer.base
    d_in, rank = vectors.shape

    def forward(x):
        before = x.dtype
        weight = empty((d_in, d_in), "float32")  # the identity
        change = reflections()
        weight = mm(weight.to(change.dtype), change)
        original = base.weight.detach()
        original = original.to(weight.dtype)
        weight = mm(original, weight)
        bias = None if base.bias is None else base.bias.to(weight.dtype)
        x = x.to(weight.dtype)
        result = linear(x, weight, bias)
        return result.to(before)

    def reflections():
        units = vectors / norm(vectors, 0)
        weight = empty((d_in, d_in), layer.dtype)
        for _ in range(rank):
            unit = units.select(1).view((d_in, 1))
            weight = weight - mm(mm(weight * 2.0, unit), unit.t())
        return weight

    return forward


def spectrum_of_weight(layer: Layer, spectrum) -> Callable:
    """FourierFT."""

    def forward(x):
        before, result = x.dtype, layer.base.forward(x)
        change = weight()
        x = x.to(change.dtype)
        result = result + linear(x, change)
        return result.to(before)

    def weight():
        places = empty((2, spectrum.shape[0]), "int64")
        dense = empty((layer.base.d_out, layer.base.d_in), "float32")
        dense = with_numbers(dense, spectrum.to("float32"), places)
        change = real(transformed_matrix(dense)) * 2.0
        return change.to(spectrum.dtype)

    return forward


def circulant(layer: Layer, kernel) -> Callable:
    """C3A, in float32 whatever the dtype of its kernel."""

    def forward(x):
        before, result = x.dtype, layer.base.forward(x)
        states, x = x, x.to("float32")
        numbers = kernel.to("float32")
        x = circular_convolution(x, numbers) / 2.0
        result = add_to_result(layer.base, states, result, x.to(result.dtype))
        return result.to(before)

    return forward
