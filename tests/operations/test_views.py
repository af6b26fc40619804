"""Views against torch's: strides, whose storage they have, and the layout of gradients."""

import pytest
import torch
from helpers.one_operation import Case, differences

from modelbudget.operations import views as ops

EVEN = {"c": (2, 4, 6)}
UNEQUAL = {"c": (5, 7)}


def merged(x):
    return (x.shape[0] * x.shape[1], x.shape[2])


def halves(x):
    return (*x.shape[:2], 2, x.shape[2] // 2)


CASES = [
    Case("view", lambda x: x.view(halves(x)), lambda x: ops.view(x, halves(x)), "abc", EVEN),
    Case(
        "reshape to fewer dimensions",
        lambda x: x.reshape(merged(x)),
        lambda x: ops.reshape(x, merged(x)),
        "abc",
    ),
    Case(
        "reshape to more dimensions",
        lambda x: x.reshape(halves(x)),
        lambda x: ops.reshape(x, halves(x)),
        "abc",
        EVEN,
    ),
    Case(
        "reshape across dimensions",
        lambda x: x.reshape(x.shape[::-1]),
        lambda x: ops.reshape(x, x.shape[::-1]),
        "abc",
    ),
    Case(
        "reshape into one", lambda x: x.reshape(-1), lambda x: ops.reshape(x, (x.numel(),)), "abc"
    ),
    Case("flatten", torch.flatten, ops.flatten, "abc"),
    Case("flatten the last two", lambda x: x.flatten(1, 2), lambda x: ops.flatten(x, 1, 2), "abcd"),
    Case(
        "flatten all but the last",
        lambda x: x.flatten(0, -2),
        lambda x: ops.flatten(x, 0, -2),
        "abc",
    ),
    Case(
        "unflatten",
        lambda x: x.unflatten(2, (-1, 2)),
        lambda x: ops.unflatten(x, 2, (x.shape[2] // 2, 2)),
        "abc",
        EVEN,
    ),
    Case("permute", lambda x: x.permute(2, 0, 1), lambda x: ops.permute(x, (2, 0, 1)), "abc"),
    Case("transpose", lambda x: x.transpose(1, -1), lambda x: ops.transpose(x, 1, -1), "abc"),
    Case("t", lambda x: x.t(), ops.t, "ab"),
    Case("unsqueeze", lambda x: x.unsqueeze(1), lambda x: ops.unsqueeze(x, 1), "abc"),
    Case("unsqueeze the last", lambda x: x.unsqueeze(-1), lambda x: ops.unsqueeze(x, -1), "abc"),
    Case("squeeze", lambda x: x.squeeze(1), lambda x: ops.squeeze(x, 1), "abc", {"b": (1,)}),
    Case(
        "expand",
        lambda x: x.expand(2, -1, 3, -1),
        lambda x: ops.expand(x, (2, -1, 3, -1)),
        "abc",
        {"b": (1, 3)},
    ),
    Case("expand nothing", lambda x: x.expand(x.shape), lambda x: ops.expand(x, x.shape), "abc"),
    Case("narrow", lambda x: x[:, :2], lambda x: ops.narrow(x, 1, 2), "abc", {"b": (2, 3)}),
    Case(
        "narrow to the last",
        lambda x: x[..., 1:],
        lambda x: ops.narrow(x, -1, x.shape[-1] - 1, False),
        "abc",
        {"c": (2, 3)},
    ),
    Case("select", lambda x: x[:, 0], lambda x: ops.select(x, 1), "abc"),
    Case(
        "split",
        lambda x: x.split((1, 2, x.shape[2] - 3), -1),
        lambda x: ops.split(x, (1, 2, x.shape[2] - 3)),
        "abc",
        UNEQUAL,
    ),
    Case("chunk", lambda x: x.chunk(2, -1), lambda x: ops.chunk(x, 2), "abc", EVEN),
    Case("chunk unequally", lambda x: x.chunk(3, -1), lambda x: ops.chunk(x, 3), "abc", UNEQUAL),
    Case("unbind", lambda x: x.unbind(1), lambda x: ops.unbind(x, 1), "abc"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_view_does_what_torch_does(case):
    assert not list(differences(case))
