"""Operations of recurrent mixers against torch's."""

import pytest
import torch
from helpers.one_operation import Case, differences
from torch.nn import functional as F

from modelbudget.operations import (
    convolution,
    einsum,
    elementwise,
    joining,
    products,
    reductions,
    views,
)

KERNELS = {"1": (1,), "l": (3, 5), "s": (1, 2, 3)}
EQUATIONS = (
    "bhds,bhs->bhd", "bhk,bhkv->bhv", "bdj,dij->bdi", "as,bs->ab", "bs,acs->abc", "acs,bs->abc",
    "abc,bc->abc", "ab,cd->bc",
)  # fmt: skip

CASES = [
    *(
        Case(
            f"einsum {equation}",
            lambda x, y, equation=equation: torch.einsum(equation, x, y),
            lambda x, y, equation=equation: einsum.einsum(equation, x, y),
            equation.partition("->")[0].replace(",", " "),
        )
        for equation in EQUATIONS
    ),
    Case(
        "conv1d of one channel",
        F.conv1d,
        convolution.conv1d,
        "bcl c1s c",
        sizes=KERNELS | {"c": (1,)},
        devices=("meta",),
    ),
    Case(
        "conv1d of all channels",
        F.conv1d,
        convolution.conv1d,
        "bcl dcs d",
        sizes=KERNELS,
        devices=("meta",),
    ),
    Case("amax", lambda x: x.amax(-1), reductions.amax, "abc"),
    Case("baddbmm", torch.baddbmm, products.baddbmm, "b1m bnk bkm", sizes={"1": (1,)}),
    Case("1 - x", lambda x: 1 - x, elementwise.one_minus, "abc"),
    Case("sqrt", torch.sqrt, elementwise.sqrt, "abc"),
    Case("repeat", lambda x: x.repeat(1, 2, 3), lambda x: joining.repeat(x, (1, 2, 3)), "abc"),
    Case("prod", lambda x: x.prod(0), lambda x: reductions.prod(x, 0), "abc"),
    Case("prod", lambda x: x.prod(1), lambda x: reductions.prod(x, 1), "abc"),
    Case("abs", torch.abs, elementwise.absolute, "abc"),
    Case("maximum", torch.maximum, elementwise.maximum, "abc abc", broadcasts=True),
    Case("log_sigmoid", F.logsigmoid, elementwise.log_sigmoid, "abc", devices=("meta",)),
    Case(
        "repeat_interleave",
        lambda x: x.repeat_interleave(3, 1),
        lambda x: views.repeat_interleave(x, 3, 1),
        "abc",
    ),
    Case(
        "pad",
        lambda x: F.pad(x, (2, 1)),
        lambda x: joining.pad(x, (*x.shape[:2], x.shape[2] + 3)),
        "abc",
    ),
    Case("pad by nothing", lambda x: F.pad(x, (0, 0)), lambda x: joining.pad(x, x.shape), "abc"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operation_does_what_torch_does(case):
    assert not list(differences(case))


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_convolution_of_several_channels(has_bias):
    """Torch counts the gradient of its weight as that of a dense convolution; all else is equal."""
    shapes = "bcl c1s c" if has_bias else "bcl c1s"
    case = Case("conv1d", lambda *args: F.conv1d(*args, groups=args[0].shape[1]),
                convolution.conv1d, shapes, sizes=KERNELS, devices=("meta",))  # fmt: skip
    assert all("flops" in difference.split("[")[0] for difference in differences(case))
