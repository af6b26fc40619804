"""Quantised weights: linear layers replaced by the tensors that a format stores."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch._C import _DisableTorchDispatch
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import is_sharded
from modelbudget.architecture.stored_formats import (
    FORMATS,
    OF_RUN,
    OF_STORED_EXPERTS,
    StoredFormat,
    StoredTensor,
    path_in_layer,
)
from modelbudget.architecture.terms import component_of
from modelbudget.common.expressions import expression_of
from modelbudget.modules.feed_forward.moe import ExpertLinear, Grouped

KEPT = "index_weight"
"""The linear layer that no format converts."""
MTP = "mtp"
"""The part of layers that predict further tokens, whose matrices stay in the dtype."""
GATES = ("shared_gate", "beta", "decay")
"""Linear layers that a format converts if its library has `gates` among what it converts."""
OF_VOCABULARY = ("library", "all")
"""Which matrices have the format, where the table of tokens may be among them."""
WHOLE = "is_whole"
"""Attribute of tensors that devices do not divide: what a library keeps apart from parameters."""


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


class Int8(torch.autograd.Function):
    """A product in int8 with a frozen matrix, as MatMul8bitLt of bitsandbytes 0.50.

    States are quantised row by row; none of their channels has an outlier here. They are kept as an
    attribute of the function, which no hook for saved tensors sees.
    """

    @staticmethod
    def forward(ctx, x, layer: "Stored"):
        ctx.layer, ctx.x = layer, x.view_as(x)
        rows = x.reshape(-1, x.shape[-1])
        half = rows.to(torch.float16)
        scales = torch.empty_like(rows[:, 0], dtype=torch.float32)
        in_8_bits = torch.empty_like(rows, dtype=torch.int8)
        are_outliers = half.abs() >= 6
        are_outliers.any()
        del half, are_outliers
        sums = torch.ops.aten._int_mm(in_8_bits, layer.weight.t())
        y = torch.empty_like(sums, dtype=torch.float16).to(x.dtype)
        del sums, scales, in_8_bits
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, gradient):
        packed = ctx.layer.weight
        rows = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        copy = packed.to(ctx.x.dtype, copy=True)
        scales = torch.empty_like(copy[:, :1], dtype=torch.float32)
        del scales
        return torch.matmul(rows, copy).view(ctx.x.shape), None


class Stored(nn.Module):
    """The tensors of a quantised linear layer, or of a stack of them, and their bias.

    `shape` and `dtype` are those of the copy that a product reads; `in_file` are the tensors that a
    file has instead. `is_divided`: devices divide the packed numbers, which are some of the dtype.
    """

    def __init__(
        self, layer: Any, stored: StoredFormat, sizes: dict[str, int], is_divided: bool = False
    ):
        super().__init__()
        *stacked, _, _ = self.shape = tuple(layer.weight.shape)
        self.dtype = layer.weight.dtype

        def made(tensors: dict[str, StoredTensor]) -> dict[str, torch.Tensor]:
            return {
                name: _empty(tensor, stacked, sizes, layer.weight)
                for name, tensor in tensors.items()
            }

        self.bias = layer.bias
        for number, (name, tensor) in enumerate(made(stored.tensors).items()):
            if name == stored.in_shards and is_divided:
                tensor = _in_dtype(tensor, self.dtype)
            frozen = nn.Parameter(tensor, requires_grad=False)
            setattr(frozen, WHOLE, name != stored.in_shards)
            if name != "bias":
                self.register_parameter(str(number), frozen)
            elif tensor.numel():
                self.bias = frozen
        self.in_file = made(stored.tensors_in_file)
        if not stored.has_bias and layer.bias is not None:
            self.in_file["bias"] = layer.bias
        self.is_int8, self.n_without_copy = stored.product == "int8", stored.n_without_copy
        self.made_for_product = (made, sizes) if (made := stored.made_for_product) else None

    def dequantised(self) -> torch.Tensor:
        """Return a matrix of the right size; its values are none of the stored ones."""
        like = torch.empty(0, dtype=self.dtype, device=next(self.parameters()).device)
        if self.made_for_product:
            _scales = _empty(self.made_for_product[0], [], self.made_for_product[1], like)
        return like.new_empty(self.shape)

    @property
    def weight(self) -> torch.Tensor:
        """The numbers of the matrix, the first of the format's tensors."""
        return self.get_parameter("0")

    def without_copy(self) -> torch.Tensor:
        """Return a matrix of the right shape that stands for the stored one, without memory."""
        with _DisableTorchDispatch():
            like = torch.empty(1, dtype=self.dtype, device=next(self.parameters()).device)
            return like.expand(self.shape)

    def forward(self, x, loads: list[int] | None = None, ends=None):
        if self.is_int8 and loads is None:
            return Int8.apply(x, self)
        dtype, x = x.dtype, x.to(self.dtype)
        bias = None if self.bias is None else self.bias.to(self.dtype)
        n, is_frozen = x.shape[:-1].numel(), not (torch.is_grad_enabled() and x.requires_grad)
        if loads is None and n <= self.n_without_copy and is_frozen:
            return F.linear(x, self.without_copy(), bias).to(dtype)
        if loads is None:
            return Dequantised.apply(x, self, bias).to(dtype)
        if torch.is_grad_enabled():
            raise ValueError(OF_STORED_EXPERTS)
        return Grouped.apply(x, self.dequantised(), bias, loads, ends).to(dtype)


def quantise(model: nn.Module, run: RunConfig) -> None:
    """Replace the linear layers that the run's format converts.

    Raises ValueError if it cannot store one of them.
    """
    known = FORMATS[run.weights]
    kept_by_class: Any = getattr(model, "kept_in_dtype", ())
    kept_parts = [*run.kept_in_dtype.split(), *kept_by_class]
    has_vocabulary = "vocabulary" in known.library.converts and run.weights_of in OF_VOCABULARY
    if has_vocabulary:
        _replace_table(model, known.format, run)
    for name, layer in list(model.named_modules()):
        path = name.split(".")
        routed = isinstance(layer, ExpertLinear)
        is_matrix = name == "head" and not getattr(layer, "tied", True) and layer.weight is not None
        if is_matrix and (run.weights_of == "all" or has_vocabulary):
            _replace_head(layer, known.format, run)
        if not (routed or isinstance(layer, nn.Linear)) or path[-1] == KEPT or path[0] == MTP:
            continue
        component = path_in_layer(component_of(name))
        if any(component == kept or component.startswith(f"{kept}.") for kept in kept_parts):
            continue
        if path[-1] in GATES and "gates" not in known.library.converts:
            continue
        of_library = ("experts" if routed else "linear") in known.library.converts
        of_run = {"dense": not routed, "experts": routed}.get(run.weights_of, True)
        is_converted = of_library if run.weights_of == "library" else of_run
        stored = known.format
        of_layer = run
        if routed and run.expert_weights != "weights":
            is_converted, stored = True, FORMATS[run.expert_weights].format
            group, block = run.expert_weight_group, run.expert_weight_block
            sizes = {"weight_group": group} if group else {}
            sizes |= {"weight_block": block} if block else {}
            of_layer = run.model_copy(update=sizes)
        if is_converted and (packed := stored_layer(name, layer, stored, of_layer)):
            model.set_submodule(name, packed)


def store_vocabulary(model: Any, run: RunConfig) -> None:
    """Store the matrices of token embedding and head in the run's dtype for them, once.

    Rows are cast to the run's dtype, and what the head reads to that of its matrix.
    """
    token, head = model.embedding.token, model.head
    if run.vocabulary_dtype == "dtype" or "forward" in vars(token):
        return
    if run.vocabulary_dtype == "int8":
        kept = token.weight
        token.weight = None
        parts = (kept.shape[1], torch.int8), (1, kept.dtype), (1, torch.int8)  # scales, zero points
        for number, (width, dtype) in enumerate(parts):
            part = kept.new_empty((len(kept), width), dtype=dtype)
            token.register_parameter(str(number), nn.Parameter(part, requires_grad=False))
        vars(token)["forward"] = partial(_rows_of_int8, token)
        return
    dtype, stored = token.weight.dtype, getattr(torch, run.vocabulary_dtype)
    token.weight = nn.Parameter(token.weight.to(stored))
    vars(token)["forward"] = lambda tokens: F.embedding(tokens, token.weight).to(dtype)
    if head.weight is None:
        return
    head.weight = token.weight if head.tied else nn.Parameter(head.weight.to(stored))

    def product(x):
        bias = None if head.bias is None else head.bias.to(head.weight.dtype)
        return F.linear(x.to(head.weight.dtype), head.weight, bias)

    head.product = product


def _rows_of_int8(token: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return rows of a table that is dequantised first (torchao, `IntxUnpackedToInt8Tensor`)."""
    numbers, scales, zero_points = token.parameters()
    table = numbers.to(scales.dtype, copy=True)
    table = table - zero_points.to(scales.dtype)
    table = table * scales
    return F.embedding(tokens, table)


def _replace_table(model: Any, stored: StoredFormat, run: RunConfig) -> None:
    """Replace the table of tokens, which a tied head reads too; characters have none."""
    token = getattr(model.embedding, "token", None)
    if token is None:
        return
    packed = stored_layer(
        "embedding.token", SimpleNamespace(weight=token.weight, bias=None), stored, run
    )
    if packed is not None:
        token.weight = None
        token.add_module("0", packed)  # a number is no part of a component's name
        if model.head.tied:
            model.head.weight = None


def _replace_head(head: Any, stored: StoredFormat, run: RunConfig) -> None:
    """Replace the matrix of a head, which keeps its cap."""
    packed = stored_layer("head", head, stored, run)
    if packed is not None:
        head.weight = head.bias = None
        head.add_module("0", packed)  # a number is no part of a component's name
        head.product = packed.forward


def stored_layer(name: str, layer: Any, stored: StoredFormat, run: RunConfig) -> Stored | None:
    """Return the tensors of a layer; None if it stays in the dtype.

    Raises ValueError if the format cannot store it.
    """
    d_out, d_in = layer.weight.shape[-2:]
    divisors = (n for n in stored.group_divisors if d_in % n == 0)
    sizes = {
        "rows": d_out,
        "columns": d_in,
        "has_bias": int(layer.bias is not None),
        "letters": len(run.dtype),
        "block": run.weight_block or stored.block,
        "group": next(divisors, d_in) if stored.group_divisors else run.weight_group or d_in,
    }
    if stored.needs and not expression_of(stored.needs)(sizes):
        if stored.otherwise == "dtype":
            return None
        raise ValueError(
            f"{run.weights}: {name} of {d_out} rows by {d_in} columns: needs {stored.needs}"
        )
    return Stored(layer, stored, sizes, bool(is_sharded(run)))


def _in_dtype(packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return packed numbers as some of a dtype (quant_storage); ValueError if they are no whole."""
    numbers, rest = divmod(packed.nbytes, dtype.itemsize)
    if rest:
        raise ValueError(f"{packed.nbytes} bytes are not whole numbers of {dtype}")
    return packed.new_empty((numbers, 1), dtype=dtype)


def _empty(
    stored: StoredTensor, stacked: list[int], sizes: dict[str, int], like: torch.Tensor
) -> torch.Tensor:
    """Return an empty tensor of one layer, or the stack of those of several."""
    shape = [size if isinstance(size, int) else expression_of(size)(sizes) for size in stored.shape]
    if any(size != int(size) for size in shape):
        raise ValueError(f"{stored.shape} of {sizes}: not whole")
    dtype = like.dtype if stored.dtype == OF_RUN else getattr(torch, stored.dtype)
    return torch.empty(*stacked, *map(int, shape), dtype=dtype, device=like.device)
