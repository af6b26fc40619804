"""Quantised weights: linear layers replaced by the tensors that a format stores."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.feed_forward.moe import ExpertLinear

KEPT = ("shared_gate", "index_weight")
"""Linear layers that no format converts."""


class Dequantised(torch.autograd.Function):
    """A product with a copy of a frozen matrix, which is made for it, in both passes.

    As MatMul4Bit of bitsandbytes 0.50 (autograd/_functions.py): nothing is saved but the stored
    matrix, which is there anyway.
    """

    @staticmethod
    def forward(ctx, x, layer: "Stored", bias):
        ctx.layer = layer
        return F.linear(x, layer.dequantised(), bias)

    @staticmethod
    def backward(ctx, gradient):
        return torch.matmul(gradient, ctx.layer.dequantised()), None, None


class Stored(nn.Module):
    """The tensors of `n` quantised linear layers, and their bias. A stack cannot be called.

    `shape` and `dtype` are those of the copy that a product reads; `n_nested_scale` scales are
    quantised too.
    """

    def __init__(
        self,
        tensors: list[torch.Tensor],
        bias: nn.Parameter | None,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        n_nested_scale: int = 0,
    ):
        super().__init__()
        for i, tensor in enumerate(tensors):
            self.register_parameter(str(i), nn.Parameter(tensor, requires_grad=False))
        self.bias = bias
        self.shape, self.dtype, self.n_nested_scale = shape, dtype, n_nested_scale

    def dequantised(self) -> torch.Tensor:
        """Return a matrix of the right size; its values are none of the stored ones."""
        device = next(self.parameters()).device
        if self.n_nested_scale:
            _scales = torch.empty(self.n_nested_scale, dtype=torch.float32, device=device)
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def forward(self, x):
        dtype, x = x.dtype, x.to(self.dtype)
        bias = None if self.bias is None else self.bias.to(self.dtype)
        return Dequantised.apply(x, self, bias).to(dtype)


def quantise(model: nn.Module, weights: str, group: int) -> None:
    """Replace the linear layers of a model's layers. Raises ValueError if their shapes do not fit.

    `group`: input channels that share a scale; 0: all.
    """
    for name, layer in list(model.named_modules()):
        path = name.split(".")
        routed = isinstance(layer, ExpertLinear)
        convertible = routed or (isinstance(layer, nn.Linear) and path[-1] not in KEPT)
        if path[0] == "layer" and convertible and (weights != "mxfp4" or routed):
            model.set_submodule(name, _stored(layer, weights, group))


def _stored(layer: Any, weights: str, group: int) -> Stored:
    """Return the tensors of a linear layer, or of a stack of them."""
    *stacked, d_out, d_in = layer.weight.shape
    tensors = _tensors(weights, d_in, d_out, group or d_in, layer.weight)
    nested = tensors[1].numel() if weights == "bnb-4bit-double" else 0
    stored = [one.new_empty(*stacked, *one.shape) for one in tensors]
    return Stored(stored, layer.bias, (*stacked, d_out, d_in), layer.weight.dtype, nested)


def _tensors(
    weights: str, d_in: int, d_out: int, group: int, like: torch.Tensor
) -> list[torch.Tensor]:
    """Return empty tensors with the shapes and dtypes of one layer."""

    def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=like.device)

    match weights:
        case "awq":
            if d_in % group or d_out % 8:
                raise ValueError(
                    f"awq: a layer of {d_in} by {d_out}: groups of {group}, packs of 8"
                )
            return [
                empty(torch.int32, d_in, d_out // 8),
                empty(torch.int32, d_in // group, d_out // 8),
                empty(torch.float16, d_in // group, d_out),
            ]
        case "gptq-4bit" | "gptq-8bit":
            per_int = 8 if weights == "gptq-4bit" else 4
            if d_in % per_int or d_out % per_int:
                raise ValueError(f"{weights}: a layer of {d_in} by {d_out}: packs of {per_int}")
            n_group = -(-d_in // group)
            return [
                empty(torch.int32, d_in // per_int, d_out),
                empty(torch.int32, n_group, d_out // per_int),
                empty(torch.float16, n_group, d_out),
                empty(torch.int32, d_in),
            ]
        case "bnb-8bit":
            return [empty(torch.int8, d_out, d_in), empty(torch.float32, d_out)]
        case "bnb-4bit" | "bnb-4bit-double":
            n_block = -(-d_in * d_out // 64)
            packed, table = empty(torch.uint8, -(-d_in * d_out // 2), 1), empty(torch.float32, 16)
            if weights == "bnb-4bit":
                return [packed, empty(torch.float32, n_block), table]
            nested = [empty(torch.float32, n) for n in (-(-n_block // 256), 256, 1)]
            return [packed, empty(torch.uint8, n_block), table, *nested]
        case "fp8-block":
            scales = empty(torch.float32, -(-d_out // 128), -(-d_in // 128))
            return [empty(torch.float8_e4m3fn, d_out, d_in), scales]
        case "fp8-channel" | "int8-channel":
            dtype = torch.int8 if weights == "int8-channel" else torch.float8_e4m3fn
            return [empty(dtype, d_out, d_in), empty(like.dtype, d_out, 1)]
        case "int4-group":
            return [
                empty(torch.int32, d_out, -(-d_in // 8)),
                empty(like.dtype, d_out, -(-d_in // group)),
                empty(torch.int64, 2),
            ]
        case "mxfp4":
            if d_in % 32:
                raise ValueError(f"mxfp4: a layer of {d_in} input channels: blocks of 32")
            return [
                empty(torch.uint8, d_out, d_in // 32, 16),
                empty(torch.uint8, d_out, d_in // 32),
            ]
    raise ValueError(f"weights = {weights!r}: no layout is known")
