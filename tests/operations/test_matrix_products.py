"""Matrix products against torch's, with their FLOPs."""

import pytest
import torch
from helpers.one_operation import UNREPEATED, Case, differences
from torch.nn import functional as F

from modelbudget.modules.feed_forward.moe import Grouped
from modelbudget.operations import products as ops


def grouped(x, weight, bias=None):
    """Multiply all rows by the matrix of the first group."""
    loads = [len(x)] + [0] * (len(weight) - 1)
    return Grouped.apply(x, weight, bias, loads, None)


def grouped_program(x, weight, bias=None):
    return ops.grouped_mm(x, weight, bias, None)


CASES = [
    Case("mm", torch.mm, ops.mm, "nk km"),
    Case("addmm", torch.addmm, ops.addmm, "m nk km"),
    Case("bmm", torch.bmm, ops.bmm, "bnk bkm"),
    Case("matmul of matrices", torch.matmul, ops.matmul, "nk km"),
    Case("matmul by a matrix", torch.matmul, ops.matmul, "bnk km"),
    Case("matmul of batches", torch.matmul, ops.matmul, "bnk bkm"),
    Case("matmul of heads", torch.matmul, ops.matmul, "abnk abkm"),
    Case("matmul of a batch by heads", torch.matmul, ops.matmul, "nk abkm"),
    Case("matmul broadcast", torch.matmul, ops.matmul, "abnk bkm"),
    Case("linear of rows", F.linear, ops.linear, "nk mk"),
    Case("linear of sequences", F.linear, ops.linear, "bnk mk"),
    Case("linear of heads", F.linear, ops.linear, "abnk mk"),
    Case("linear of rows with a bias", F.linear, ops.linear, "nk mk m", layouts=UNREPEATED),
    Case("linear of sequences with a bias", F.linear, ops.linear, "bnk mk m", layouts=UNREPEATED),
    Case("linear of heads with a bias", F.linear, ops.linear, "abnk mk m", layouts=UNREPEATED),
    Case("grouped_mm", grouped, grouped_program, "nk gmk", layouts=""),
    Case("grouped_mm with a bias", grouped, grouped_program, "nk gmk gm", layouts=""),
    Case(
        "solve_triangular",
        lambda a, x: torch.linalg.solve_triangular(a, x, upper=False),
        ops.solve_triangular,
        "bnn bnm",
        dtypes=("float32", "float64"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_product_does_what_torch_does(case):
    assert not list(differences(case))
