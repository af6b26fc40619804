"""Losses of DPO and GRPO against torch's operations, each allocation.

Only here there are more tokens than those whose entropies are computed at once.
"""

from functools import partial

import pytest
import torch
from helpers import preference_losses
from helpers.one_operation import Case, differences

from modelbudget.components import preference_loss
from modelbudget.components.preference_loss import Preference
from modelbudget.operations.elementwise import clone
from modelbudget.operations.tape import empty


def in_torch(trainer, runs_reference, logits):
    batch, length, _ = logits.shape
    tokens, mask = (torch.zeros(batch, length, dtype=torch.long, device="meta") for _ in range(2))
    sizes = (batch,) if trainer == "dpo" else (batch, length - 1)
    x = logits.clone()
    other = partial(torch.zeros, logits.shape, dtype=logits.dtype, device="meta")
    if not runs_reference:
        other = torch.zeros(sizes, dtype=logits.dtype, device="meta")
    return getattr(preference_losses, trainer)(x, tokens, mask, length - 1, other)


def in_program(trainer, runs_reference, logits):
    batch, length, _ = logits.shape
    tokens, mask = (empty((batch, length), "int64") for _ in range(2))
    sizes = (batch,) if trainer == "dpo" else (batch, length - 1)
    x = clone(logits)
    other = None if runs_reference else empty(sizes, logits.dtype)
    compute = getattr(preference_loss, f"_{trainer}")
    return compute(Preference(trainer, length - 1), x, tokens, mask, other)


@pytest.mark.parametrize(
    ("trainer", "runs_reference"), [("dpo", True), ("dpo", False), ("grpo", False)]
)
def test_a_loss_allocates_and_saves_what_torch_does(trainer, runs_reference):
    both = (partial(x, trainer, runs_reference) for x in (in_torch, in_program))
    sizes = {"a": (2, 4, 6), "b": (3, 5, 70), "c": (7, 11)}
    floats = ("float32", "bfloat16")
    case = Case(trainer, *both, "abc", sizes, False, "", floats, ("meta",), n_draws=8)
    assert not list(differences(case))
