"""Fourier transforms, and products that are made of them.

Source: aten/src/ATen/native/SpectralOps.cpp; `BlockCircularConvolution` of peft 0.21.2
(tuners/c3a/utils.py), a torch.autograd.Function.
"""

from modelbudget.operations.autograd import finish_function, start_node, with_node
from modelbudget.operations.einsum import einsum
from modelbudget.operations.memory_layout import empty_like
from modelbudget.operations.operation import operation
from modelbudget.operations.tape import Active, Tensor, complex_of, empty
from modelbudget.operations.views import reshape, select, view_as_real


@operation
def transformed(x: Tensor) -> Tensor:
    """Transform the last dimension, forward or back: complex numbers, of real or complex ones."""
    dtype = x.dtype if x.dtype.startswith("complex") else complex_of(x.dtype)
    return empty(x.shape, dtype)


def transformed_matrix(x: Tensor) -> Tensor:
    """Transform both dimensions of real numbers, which are cast before (ifft2).

    The gradient of the cast is the real part, a view.
    """
    cast = with_node("to", empty_like(x, complex_of(x.dtype)), [x], lambda _, g: real(g))
    return with_node("fft_c2c", transformed(cast), [cast], lambda _, g: transformed(g))


def real(x: Tensor) -> Tensor:
    """Return the real parts: a view."""
    return select(view_as_real(x), -1)


def circular_convolution(x: Tensor, kernel: Tensor) -> Tensor:
    """Multiply each block of x by circulant matrices, which a kernel has one row of."""
    m, n, block = kernel.shape
    blocks = reshape(x.detach(), (*x.shape[:-1], n, block))
    node = start_node("circular_convolution", [x, kernel])
    before = x.shape
    with Active.tape.without_graph():
        y = einsum("abnk,mnk->abmk", transformed(blocks), transformed(kernel.detach()))
        y = real(transformed(y))
        y = reshape(y, (*before[:-1], m * block)).detach()

    def gradients(saved, g):
        blocks, kernel = saved
        g = transformed(reshape(g, (*before[:-1], m, block)))
        of_x = real(transformed(einsum("abmk,mnk->abnk", g, transformed(kernel))))
        of_x = reshape(of_x, before)
        of_kernel = real(transformed(einsum("abmk,abnk->mnk", g, transformed(blocks))))
        return of_x, of_kernel

    # a Function saves when it is done
    return finish_function(node, y, gradients, [blocks, kernel])
