"""Losses against torch's, and Megatron's in place against what measurements run."""

from functools import partial

import pytest
from helpers.one_operation import Case, differences
from torch.nn import functional as F

from modelbudget.modules import in_place_loss
from modelbudget.operations import losses as ops
from modelbudget.operations.views import flatten


def in_torch(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def on_tape(logits, targets):
    return ops.cross_entropy(flatten(logits, 0, 1), flatten(targets))


def in_place(copies: bool):
    return (
        partial(in_place_loss.loss_of, copies=copies),
        partial(ops.cross_entropy_in_place, copies=copies),
    )


CASES = [
    Case("cross_entropy", F.cross_entropy, ops.cross_entropy, "nv n#", layouts=""),
    Case("cross_entropy of sequences", in_torch, on_tape, "blv bl#", layouts=""),
    Case("in place", *in_place(False), "blv bl#", layouts=""),
    Case("in place of a copy", *in_place(True), "blv bl#", layouts=""),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_loss_does_what_torch_does(case):
    assert not list(differences(case))
