"""Fourier transforms, and products that are made of them.

Source: aten/src/ATen/native/SpectralOps.cpp; `BlockCircularConvolution` of peft 0.21.2
(tuners/c3a/utils.py), a torch.autograd.Function.
"""

from modelbudget.operations.autograd import finish_function, start_node, with_node
from modelbudget.operations.einsum import einsum
from modelbudget.operations.memory_layout import empty_like, is_contiguous, is_unit
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import Active, Tensor, complex_of, empty
from modelbudget.operations.views import view_as_real


@operation
def transformed(x: Tensor) -> Tensor:
    """Transform the last dimension, forward or back: complex numbers, of real or complex ones.

    The other dimensions lie in memory in the order that those of x have (`_exec_fft`).
    """
    dtype = x.dtype if x.dtype.startswith("complex") else complex_of(x.dtype)
    if is_contiguous(x, is_unit):
        return empty(x.shape, dtype)
    last = len(x.shape) - 1
    order = [*sorted(range(last), key=lambda dim: -x.strides[dim]), last]
    in_order = empty([x.shape[dim] for dim in order], dtype)
    return in_order.permute([order.index(dim) for dim in range(len(order))])


def transformed_matrix(x: Tensor) -> Tensor:
    """Transform both dimensions of real numbers, which are cast before (ifft2).

    The gradient of the cast is the real part, a view.
    """
    cast = with_node("to", empty_like(x, complex_of(x.dtype)), [x], lambda _, g: real(g))
    return with_node("fft_c2c", transformed(cast), [cast], lambda _, g: transformed(g))


def real(x: Tensor) -> Tensor:
    """Return the real parts: a view."""
    return view_as_real(x).select(-1)


def circular_convolution(x: Tensor, kernel: Tensor) -> Tensor:
    """Multiply each block of x by circulant matrices, which a kernel has one row of."""
    m, n, block = kernel.shape
    blocks = x.detach().reshape((*x.shape[:-1], n, block))
    node = start_node("circular_convolution", [x, kernel])
    before = x.shape

    # Inverse transforms, of blocks and of the kernel in the backward pass, are conjugates that are
    # computed when they are read: without a sum, by a copy (ConjugateFallback.cpp).
    def by_blocks(blocks, kernel):
        return einsum("abnk,mnk->abmk", blocks.clone() if is_unit(n) else blocks, kernel)

    def by_blocks_of_gradient(g, kernel):
        return einsum("abmk,mnk->abnk", g, kernel.clone() if is_unit(m) else kernel)

    with Active.tape.without_graph():
        y = by_blocks(transformed(blocks), transformed(kernel.detach()))
        y = real(transformed(y))
        y = y.reshape((*before[:-1], m * block)).detach()

    def gradients(saved, g):
        blocks, kernel = saved
        g = transformed(g.reshape((*before[:-1], m, block)))
        of_x = real(transformed(by_blocks_of_gradient(g, transformed(kernel))))
        of_x = of_x.reshape(before)
        of_kernel = real(transformed(einsum("abmk,abnk->mnk", g, transformed(blocks))))
        return of_x, of_kernel

    # a Function saves when it is done
    return finish_function(node, y, gradients, [blocks, kernel])
