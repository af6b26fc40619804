"""Concatenation, padding, rows by their number against torch's."""

import pytest
import torch
from helpers.one_operation import Case, differences
from torch.nn import functional as F

from modelbudget.operations import joining as ops


def cat_in_torch(*x):
    return torch.cat(x, -1)


def padded(x):
    return (x.shape[0], x.shape[1] + 2, x.shape[2] + 1)


CASES = [
    Case("cat", cat_in_torch, lambda *x: ops.cat(x), "abc abd"),
    Case("cat of three", lambda *x: torch.cat(x, 1), lambda *x: ops.cat(x, 1), "abc adc aec"),
    Case("cat of dtypes", cat_in_torch, lambda *x: ops.cat(x), "abc abd", mixed=True),
    Case("stack", lambda *x: torch.stack(x, 1), lambda *x: ops.stack(x, 1), "abc abc"),
    Case("stack last", lambda *x: torch.stack(x, -1), lambda *x: ops.stack(x, -1), "abc abc abc"),
    Case("pad", lambda x: F.pad(x, (1, 0, 2, 0)), lambda x: ops.pad(x, padded(x)), "abc"),
    Case("rows", lambda x, i: x[i], ops.rows, "ab c#"),
    Case("numbers", lambda x, i: x[i], ops.rows, "a c#"),
    Case("gather", lambda x, i: x.gather(-1, i), ops.gather, "ab ac#"),
    Case("index_add", lambda x, i, y: x.index_add(0, i, y), ops.index_add, "ab c# cb"),
    Case("embedding", lambda x, i: F.embedding(i, x), ops.embedding, "ab cd#"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operation_does_what_torch_does(case):
    assert not list(differences(case))
