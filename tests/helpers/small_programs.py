"""Small parts of models, in torch and as programs, without modules."""

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from modelbudget.operations.activation_checkpoint import checkpoint
from modelbudget.operations.elementwise import add, exp, gelu, mul, sigmoid, silu, tanh
from modelbudget.operations.norms import layer_norm
from modelbudget.operations.products import linear, matmul
from modelbudget.operations.reductions import softmax, sum_over
from modelbudget.operations.views import expand, flatten, narrow, split, transpose, view


def checkpointed(function):
    return lambda *args: torch_checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=False
    )


def checkpointed_program(function):
    return lambda *args: checkpoint(function, *args)


def mlp(x, up, down):
    return F.linear(F.gelu(F.linear(x, up)), down)


def mlp_program(x, up, down):
    return linear(gelu(linear(x, up)), down)


def residual(x, weight):
    return x + F.linear(F.layer_norm(x, x.shape[-1:], None, None), weight)


def residual_program(x, weight):
    return add(x, linear(layer_norm(x, 1, None, None), weight))


def packed(x, weight):
    q, k, v = F.linear(x, weight).split(weight.shape[0] // 3, -1)
    return torch.matmul(torch.matmul(q, k.transpose(-2, -1)).softmax(-1), v)


def packed_program(x, weight):
    q, k, v = split(linear(x, weight), (weight.shape[0] // 3,) * 3)
    return matmul(softmax(matmul(q, transpose(k, -2, -1))), v)


def twice(x, weight):
    return F.linear(F.linear(x, weight).tanh(), weight)


def twice_program(x, weight):
    return linear(tanh(linear(x, weight)), weight)


def three_readers(x):
    return x.sigmoid() + x.exp() * x


def three_readers_program(x):
    return add(sigmoid(x), mul(exp(x), x))


def views(x):
    y = x.transpose(0, 1)
    return y.flatten(1).sum(0) + y[:, :1].expand(y.shape).flatten(1).sum(0)


def views_program(x):
    y = transpose(x, 0, 1)
    first = sum_over(flatten(y, 1), [0])
    return add(first, sum_over(flatten(expand(narrow(y, 1, 1), y.shape), 1), [0]))


def gated(x):
    y = x.view(-1)
    return F.silu(y) * y, y.exp()


def gated_program(x):
    y = view(x, (x.numel(),))
    return mul(silu(y), y), exp(y)


MLP = mlp, mlp_program
RESIDUAL = residual, residual_program
PACKED = packed, packed_program
TWICE = twice, twice_program
THREE_READERS = three_readers, three_readers_program
VIEWS = views, views_program
TWO_RESULTS = gated, gated_program
