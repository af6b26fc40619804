"""The order of a backward pass against torch's engine: several readers, checkpoints, autocast."""

from functools import wraps

import pytest
import torch
from helpers.one_operation import UNREPEATED, Case, differences
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement import autocast as emulated
from modelbudget.operations.autocast import Autocast
from modelbudget.operations.checkpoint import checkpoint
from modelbudget.operations.elementwise import add, exp, gelu, mul, sigmoid, silu, tanh
from modelbudget.operations.norms import layer_norm
from modelbudget.operations.products import linear, matmul
from modelbudget.operations.reductions import softmax, sum_over
from modelbudget.operations.tape import Active
from modelbudget.operations.views import expand, flatten, narrow, split, transpose, view

BFLOAT16 = RunConfig(batch=1, length=1, autocast="bfloat16")


def checkpointed(function):
    return lambda *args: torch_checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=False
    )


def checkpointed_program(function):
    return lambda *args: checkpoint(function, *args)


def with_autocast(function):
    @wraps(function)
    def run(*args):
        with emulated.autocast(BFLOAT16):
            return function(*args)

    run.around_backward = lambda: emulated.autocast(BFLOAT16, caches=False)
    return run


def with_autocast_program(function):
    @wraps(function)
    def run(*args):
        Active.tape.autocast = Autocast("bfloat16")
        try:
            return function(*args)
        finally:
            Active.tape.autocast = None

    return run


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
FULL = "float32", "float64"
THREE = {"m": (3, 6)}
SQUARE = "abk kk"

CASES = [
    Case("three readers", three_readers, three_readers_program, "abc"),
    Case("views", views, views_program, "abc"),
    Case("two results", gated, gated_program, "abc", layouts=""),
    Case("MLP", *MLP, "abk mk km", n_draws=8),
    Case("residual sum", *RESIDUAL, SQUARE, layouts="", dtypes=FULL, n_draws=8),
    Case("packed projections", *PACKED, "abk mk", THREE, layouts=UNREPEATED, n_draws=8),
    Case("a weight read twice", *TWICE, SQUARE),
    *(
        Case(
            f"checkpoint of {name}",
            checkpointed(torch_),
            checkpointed_program(program),
            shapes,
            THREE,
            layouts=layouts,
            dtypes=FULL,
            n_draws=8,
        )
        for name, (torch_, program), shapes, layouts in (
            ("three readers", (three_readers, three_readers_program), "abc", UNREPEATED),
            ("MLP", MLP, "abk mk km", UNREPEATED),
            ("residual sum", RESIDUAL, SQUARE, ""),
            ("packed projections", PACKED, "abk mk", UNREPEATED),
            ("two results", (gated, gated_program), "abc", ""),
        )
    ),
    *(
        Case(
            f"autocast of {name}",
            with_autocast(torch_),
            with_autocast_program(program),
            shapes,
            THREE,
            layouts="",
            dtypes=("float32",),
            n_draws=8,
        )
        for name, (torch_, program), shapes in (
            ("three readers", (three_readers, three_readers_program), "abc"),
            ("MLP", MLP, "abk mk km"),
            ("residual sum", RESIDUAL, SQUARE),
            ("packed projections", PACKED, "abk mk"),
            ("a weight read twice", TWICE, SQUARE),
            (
                "a checkpointed weight read twice",
                (checkpointed(twice), checkpointed_program(twice_program)),
                SQUARE,
            ),
        )
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_backward_pass_does_what_torchs_does(case):
    assert not list(differences(case))
