"""Elementwise operations against torch's."""

import pytest
import torch
from helpers.one_operation import DENSE, META, UNREPEATED, Case, differences
from torch.nn import functional as F

from modelbudget.operations import elementwise as ops


def native_dropout(x):
    return torch.native_dropout(x, 0.1, True)[0]


CASES = [
    Case("add", torch.add, ops.add, "abc abc", broadcasts=True, layouts=DENSE, mixed=True),
    Case("add of four dimensions", torch.add, ops.add, "abcd abcd"),
    Case("add a number", lambda x: x + 1.0, lambda x: ops.add(x, 1.0), "abc"),
    Case("sub", torch.sub, ops.sub, "abc abc", broadcasts=True, layouts=DENSE, mixed=True),
    Case("sub a number", lambda x: x - 1.0, lambda x: ops.sub(x, 1.0), "abc"),
    Case("neg", torch.neg, ops.neg, "abc"),
    Case("mul", torch.mul, ops.mul, "abc abc", broadcasts=True, layouts=DENSE, mixed=True),
    Case("mul of four dimensions", torch.mul, ops.mul, "abcd abcd"),
    Case("mul by a number", lambda x: 2.0 * x, lambda x: ops.mul(2.0, x), "abc"),
    Case("mul by itself", lambda x: x * x, lambda x: ops.mul(x, x), "abc"),
    Case("div", torch.div, ops.div, "abc abc", broadcasts=True, layouts=DENSE, mixed=True),
    Case("div by a number", lambda x: x / 2.0, lambda x: ops.div(x, 2.0), "abc"),
    Case("silu", F.silu, ops.silu, "abc"),
    Case("gelu", F.gelu, ops.gelu, "abc"),
    Case("relu", F.relu, ops.relu, "abc"),
    Case("sigmoid", torch.sigmoid, ops.sigmoid, "abc"),
    Case("tanh", torch.tanh, ops.tanh, "abc"),
    # C++ orders the dimensions of its gradient otherwise than the decomposition on meta.
    Case("softplus", F.softplus, ops.softplus, "abc", layouts=UNREPEATED, devices=META),
    Case("exp", torch.exp, ops.exp, "abc"),
    Case("pow 2", lambda x: x.pow(2), lambda x: ops.power(x, 2), "abc"),
    Case("pow 3", lambda x: x.pow(3), lambda x: ops.power(x, 3), "abc"),
    Case("expm1", torch.expm1, ops.expm1, "abc"),
    Case("clamp", lambda x: x.clamp(max=0), ops.clamp, "abc"),
    Case(
        "where",
        lambda i, x, y: torch.where(i > 0, x, y),
        lambda i, x, y: ops.where(ops.compare(i), x, y),
        "abc# abc abc",
        broadcasts=True,
    ),
    Case("rsqrt", torch.rsqrt, ops.rsqrt, "abc"),
    Case("compare", torch.gt, ops.compare, "abc abc", broadcasts=True),
    Case(
        "masked_fill",
        lambda x, y: x.masked_fill(y > 0, 0.0),
        lambda x, y: ops.masked_fill(x, ops.compare(y)),
        "abc bc#",
    ),
    *(
        Case(
            f"to {dtype}",
            lambda x, dtype=dtype: x.to(getattr(torch, dtype)),
            lambda x, dtype=dtype: ops.to(x, dtype),
            "abc",
        )
        for dtype in ("float32", "bfloat16")
    ),
    Case("contiguous", lambda x: x.contiguous(), ops.contiguous, "abc"),
    Case("clone", torch.clone, ops.clone, "abc"),
    Case(
        "dropout of a GPU",
        native_dropout,
        ops.dropout,
        "abc",
        devices=META,
    ),
    Case(
        "dropout of four dimensions",
        native_dropout,
        ops.dropout,
        "abcd",
        layouts="",
        devices=META,
    ),
    Case(
        "dropout of a CPU",
        lambda x: F.dropout(x, 0.1),
        lambda x: ops.dropout(x, backend="cpu"),
        "abc",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operation_does_what_torch_does(case):
    assert not list(differences(case))
