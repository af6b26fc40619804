"""Sums, softmax and selections against torch's."""

import pytest
import torch
from helpers.one_operation import Case, differences
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from modelbudget.measurement.trace.module_trace import _of_safe_softmax
from modelbudget.operations import reductions as ops

AT_LEAST_TWO = {"c": (2, 4, 6)}

CASES = [
    Case("sum", lambda x: x.sum(1), lambda x: ops.sum_over(x, (1,)), "abc"),
    Case(
        "sum over two",
        lambda x: x.sum((0, -1), keepdim=True),
        lambda x: ops.sum_over(x, (0, -1), True),
        "abc",
    ),
    Case(
        "sum in float32",
        lambda x: x.sum(1, dtype=torch.float32),
        lambda x: ops.sum_over(x, (1,), dtype="float32"),
        "abc",
    ),
    Case("mean", lambda x: x.mean(-1), lambda x: ops.mean(x, (-1,)), "abc"),
    Case(
        "mean kept",
        lambda x: x.mean((0, 2), keepdim=True),
        lambda x: ops.mean(x, (0, 2), True),
        "abc",
    ),
    Case("cumsum", lambda x: x.cumsum(1), lambda x: ops.cumsum(x, 1), "abc"),
    Case("softmax", lambda x: F.softmax(x, -1), ops.softmax, "abc"),
    Case(
        "softmax in float32",
        lambda x: F.softmax(x, -1, dtype=torch.float32),
        lambda x: ops.softmax(x, "float32"),
        "abc",
    ),
    Case("safe_softmax", lambda x: torch.ops.aten._safe_softmax(x, -1), ops.safe_softmax, "abc"),
    # On meta its gradient is laid out as the result's.
    Case("log_softmax", lambda x: F.log_softmax(x, -1), ops.log_softmax, "abc", devices=("cpu",)),
    Case("logsumexp", lambda x: torch.logsumexp(x, -1), ops.logsumexp, "abc"),
    Case("topk", lambda x: torch.topk(x, 2), lambda x: ops.topk(x, 2), "abc", AT_LEAST_TWO),
    Case("topk of all", lambda x: torch.topk(x, 2), lambda x: ops.topk(x, 2), "abc", {"c": (2,)}),
    Case("sort", lambda x: torch.sort(x.detach()), ops.sort, "a"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operation_does_what_torch_does(case):
    assert not list(differences(case))


def test_what_a_safe_softmax_allocates_inside():
    """Torch's profiler sees inside of an operation, where traces do not."""
    scores = torch.randn(3, 50, 40)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        _result = torch.ops.aten._safe_softmax(scores, -1)
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    inside = _of_safe_softmax(scores, -1)
    assert sizes == [scores.nbytes, *inside, *(-size for size in reversed(inside))]
