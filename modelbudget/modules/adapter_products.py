"""Products of adapters with the operations of PEFT's layers, one function a method.

They have the names that `forward` of a method has (configs/adapters.yaml). `layer` is a target
(`modules/adapters.py`): its base, its tensors by PEFT's names, dropout.
"""

import torch
from torch.nn import functional as F

FACTOR = 2.0


def low_rank(layer, x):
    result, drop = layer.result(x), layer.lora_dropout
    dtype = result.dtype
    x = x.to(layer.dtype)
    if layer.is_stored:
        product = (F.linear(F.linear(drop(x), layer.lora_A), layer.lora_B) * FACTOR).to(dtype)
        return result + product
    result = result + F.linear(F.linear(drop(x), layer.lora_A), layer.lora_B) * FACTOR
    return result.to(dtype)


def weight_decomposed(layer, x):
    result = layer.result(x)
    dtype = result.dtype
    x = x.to(layer.dtype)
    result = _with_decomposed(layer, x, result)
    return result.to(dtype)


def _with_decomposed(layer, x, result):
    base_result = result
    if layer.lora_dropout.p and layer.training:
        x, base_result = layer.lora_dropout(x), None
    return result + _decomposed(layer, x, base_result)


def _decomposed(layer, x, base_result):
    lora_weight = _of_eye(layer)
    weight = layer.stored_matrix() if layer.is_stored else layer.weight
    weight = weight.to(x.dtype)
    norm = _norm(weight, lora_weight.detach())
    scale = (layer.lora_magnitude_vector / norm).view(1, -1)
    product = F.linear(F.linear(x, layer.lora_A), layer.lora_B)
    if base_result is None:
        base_result = F.linear(x, weight)
    elif getattr(layer, "bias", None) is not None:
        base_result = base_result - layer.bias
    return (scale - 1) * base_result + scale * product * FACTOR


def _of_eye(layer):
    d_in, device = layer.lora_A.shape[1], layer.lora_A.device
    eye = torch.eye(d_in, device=device, dtype=layer.dtype)
    return F.linear(F.linear(eye, layer.lora_A), layer.lora_B).T


def _norm(weight, lora_weight):
    weight = weight + lora_weight * FACTOR
    return torch.linalg.norm(weight, dim=1)


def vectors_of_shared(layer, x):
    before, result = x.dtype, layer.result(x)
    dtype = result.dtype
    down = layer.shared["vera_A"][:, : x.shape[-1]]
    up = layer.shared["vera_B"][: result.shape[-1]]
    x = x.to(layer.dtype)
    result = result + layer.vera_lambda_b * F.linear(
        layer.vera_lambda_d * F.linear(layer.lora_dropout(x), down), up
    )
    return result.to(dtype).to(before)


def hadamard(layer, x):
    return _with_change(layer, x, _hadamard_weight)


def _with_change(layer, x, change_of_weight):
    """Add the product of a change of the base's weight."""
    dtype, result = x.dtype, layer.of_base(x)
    result = result + _product(layer, x, change_of_weight)
    return result.to(dtype)


def _product(layer, x, change_of_weight):
    change = change_of_weight(layer)
    return F.linear(x.to(change.dtype), change)


def _hadamard_weight(layer):
    matrices = layer.hada_w1_a, layer.hada_w1_b, layer.hada_w2_a, layer.hada_w2_b
    scale = torch.empty((), device=layer.hada_w1_a.device)
    return HadamardProduct.apply(*matrices, scale)


class HadamardProduct(torch.autograd.Function):
    """A product, number by number, of two products of low rank, and of a number."""

    @staticmethod
    def forward(ctx, w1_a, w1_b, w2_a, w2_b, scale):
        ctx.save_for_backward(w1_a, w1_b, w2_a, w2_b, scale)
        return ((w1_a @ w1_b) * (w2_a @ w2_b)) * scale

    @staticmethod
    def backward(ctx, gradient):
        w1_a, w1_b, w2_a, w2_b, scale = ctx.saved_tensors
        gradient = gradient * scale
        inner = gradient * (w2_a @ w2_b)
        of_w1_a, of_w1_b = inner @ w1_b.T, w1_a.T @ inner
        inner = gradient * (w1_a @ w1_b)
        of_w2_a, of_w2_b = inner @ w2_b.T, w2_a.T @ inner
        del inner
        return of_w1_a, of_w1_b, of_w2_a, of_w2_b, None


def scaled(layer, x):
    before, scale = x.dtype, 1 * layer.ia3_l.flatten()
    if layer.is_feedforward:
        x = x.to(layer.dtype)
        inner = (x * scale).to(before)
        return layer.of_base(inner)
    result = layer.of_base(x)
    return (result * scale).to(result.dtype)


def singular_values(layer, x):
    result = layer.of_base(x)
    ranks = layer.ranknum + 1e-5
    x = x.to(layer.dtype)
    result += (
        (layer.lora_dropout(x) @ (layer.lora_A * layer.lora_E).T @ layer.lora_B.T) * FACTOR / ranks
    )
    return result


def hadamard_of_weight(layer, x):
    result = layer.of_base(x)
    dtype = result.dtype
    product = torch.mm(layer.hira_A.T, layer.hira_B.T)
    x = x.to(layer.dtype)
    dropped = layer.lora_dropout(x)
    change = F.linear(dropped, layer.weight * product.T)
    result = result + change
    return result.to(dtype)


def normalised(layer, x):
    before, result = x.dtype, layer.of_base(x)
    change = torch.zeros_like(result)
    dropped = layer.lora_dropout(x)
    h = F.linear(dropped * layer.delora_w_norm, layer.delora_A)
    of_rows = torch.clamp(layer.delora_A.norm(dim=1), min=1e-4)
    of_columns = torch.clamp(layer.delora_B.norm(dim=0), min=1e-4)
    scaling = (layer.delora_lambda / FACTOR) / (of_rows * of_columns)
    h = h * scaling
    h = F.linear(h, layer.delora_B)
    change += h
    result = result + change.to(result.dtype)
    return result.to(before)


def sampled_vectors_of_shared(layer, x):
    before, result = x.dtype, layer.of_base(x)
    down = layer.shared["pvera_A"][:, : x.shape[-1]]
    up = layer.shared["pvera_B"][: result.shape[-1]]
    x = x.to(layer.dtype)
    of_rank = layer.pvera_lambda_d * F.linear(layer.lora_dropout(x), down)
    mean, log_variance = of_rank.chunk(2, dim=-1)
    del of_rank
    result = result + layer.pvera_lambda_b * F.linear(_sampled(mean, log_variance), up)
    return result.to(before)


def _sampled(mean, log_variance):
    deviation = torch.exp(0.5 * log_variance)
    noise = torch.randn_like(deviation)
    return mean + noise * deviation


def kronecker(layer, x):
    return _with_change(layer, x, _kronecker_weight)


def _kronecker_weight(layer):
    w2 = layer.lokr_w2_a @ layer.lokr_w2_b
    return (torch.kron(layer.lokr_w1, w2) * FACTOR).view(layer.weight.shape)


def rotated_blocks(layer, x):
    before = x.dtype
    x = x.to(layer.dtype)
    x = _rotate(layer, x)
    result = layer.of_base(x.to(before))
    return result.to(before)


def _rotate(layer, x):
    rotation = _cayley(layer)
    n, size, _ = rotation.shape
    blocks = x.reshape(*x.shape[:-1], n, size)
    rotated = torch.einsum("...rk,rkc->...rc", blocks, rotation)
    return rotated.reshape(x.shape)


def _cayley(layer):
    skew = _skew_symmetric(layer)
    n, size, _ = skew.shape
    rotation = torch.eye(size, device=skew.device, dtype=skew.dtype).repeat(n, 1, 1)
    rotation.add_(skew, alpha=2.0)
    squared = torch.bmm(skew, skew)
    rotation.add_(squared, alpha=2.0)
    power = squared
    power = torch.bmm(power, skew)
    rotation.add_(power, alpha=2.0)
    power = torch.bmm(power, skew)
    return rotation.add_(power)


def _skew_symmetric(layer):
    n, m = layer.oft_R.shape
    size = int((1 + (1 + 8 * m) ** 0.5) / 2)
    matrix = torch.zeros(n, size, size, device=layer.oft_R.device, dtype=layer.oft_R.dtype)
    matrix[:, layer.rows, layer.cols] = layer.oft_R
    return matrix - matrix.transpose(-2, -1)


def summed_shards(layer, x):
    before, result = x.dtype, layer.of_base(x)
    block = layer.miss_block
    x = x.to(layer.dtype)
    shards = (*x.shape[:-1], x.shape[-1] // block.shape[0], block.shape[0])
    result = result + torch.sum(layer.lora_dropout(x).reshape(shards), dim=-2) @ block
    return result.to(before)


def rotated_pairs(layer, x):
    result = layer.of_base(x)
    dtype = result.dtype
    result = result.to(layer.dtype)
    result = _rotated(layer, result)
    return result.to(dtype)


def _rotated(layer, x):
    first, second = _columns(layer)
    groups = x.reshape(-1, 2, 1)
    x1, x2 = groups[:, 0, :], groups[:, 1, :]
    half = torch.stack((-x2, x1), dim=1).reshape(x.shape)
    return x * first + half * second


def _columns(layer):
    angle, size = (
        vector.reshape(-1, 1).repeat_interleave(2, dim=0).flatten()
        for vector in (layer.road_theta, layer.road_alpha)
    )
    cosine, sine = angle.cos(), angle.sin()
    return size * cosine, size * sine


def reflected(layer, x):
    before, d_in = x.dtype, x.shape[-1]
    weight = torch.eye(d_in, device=x.device)
    change = _reflections(layer)
    weight = torch.mm(weight.to(change.dtype), change)
    original = layer.weight.detach()
    original = original.to(weight.dtype)
    weight = torch.mm(original, weight)
    bias = getattr(layer, "bias", None)
    bias = None if bias is None else bias.to(weight.dtype)
    x = x.to(weight.dtype)
    result = F.linear(x, weight, bias)
    return result.to(before)


def _reflections(layer):
    units = layer.hra_u / layer.hra_u.norm(dim=0)
    d_in, rank = units.shape
    weight = torch.eye(d_in, device=units.device, dtype=units.dtype)
    for i in range(rank):
        unit = units[:, i].view(-1, 1)
        weight = weight - 2 * weight @ unit @ unit.T
    return weight


def spectrum_of_weight(layer, x):
    before, result = x.dtype, layer.of_base(x)
    change = _weight_of_spectrum(layer)
    x = x.to(change.dtype)
    result = result + F.linear(x, change)
    return result.to(before)


def _weight_of_spectrum(layer):
    spectrum, weight = layer.fourierft_spectrum, layer.weight
    places = torch.zeros(2, len(spectrum), dtype=torch.int64, device=spectrum.device)
    dense = torch.zeros(weight.shape, device=spectrum.device)
    dense[places[0], places[1]] = spectrum.float()
    change = torch.fft.ifft2(dense).real * FACTOR
    return change.to(spectrum.dtype)


def circulant(layer, x):
    before, result = x.dtype, layer.of_base(x)
    x = x.to(torch.float32)
    kernel = layer.c3a_kernel.to(torch.float32)
    x = CircularConvolution.apply(x, kernel) / FACTOR
    result += x.to(result.dtype)
    return result.to(before)


class CircularConvolution(torch.autograd.Function):
    """Products of blocks with circulant matrices, by Fourier transforms."""

    @staticmethod
    def forward(ctx, x, kernel):
        _, n, size = kernel.shape
        x = x.reshape(*x.shape[:-1], n, size)
        ctx.save_for_backward(x, kernel)
        fft = torch.fft
        y = torch.einsum("...nb,mnb->...mb", fft.ifft(x), fft.fft(kernel))
        y = fft.fft(y).real
        return y.reshape(*y.shape[:-2], -1)

    @staticmethod
    def backward(ctx, gradient):
        x, kernel = ctx.saved_tensors
        m, _, size = kernel.shape
        gradient = gradient.reshape(*gradient.shape[:-1], m, size)
        fft = torch.fft
        gradient = fft.fft(gradient)
        of_x = fft.fft(torch.einsum("...mb,mnb->...nb", gradient, fft.ifft(kernel))).real
        of_x = of_x.reshape(*of_x.shape[:-2], -1)
        of_kernel = fft.fft(torch.einsum("...mb,...nb->mnb", gradient, fft.ifft(x))).real
        return of_x, of_kernel
