"""The order of a backward pass against torch's engine: several readers, checkpoints, autocast."""

from functools import wraps
from threading import Thread

import pytest
import torch
from helpers.one_operation import UNREPEATED, Case, differences
from helpers.small_programs import (
    MLP,
    PACKED,
    RESIDUAL,
    THREE_READERS,
    TWICE,
    TWO_RESULTS,
    VIEWS,
    checkpointed,
    checkpointed_program,
)

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.trace import emulated_autocast as emulated
from modelbudget.operations.autocast import Autocast
from modelbudget.operations.autograd import backward, make_leaf
from modelbudget.operations.norms import layer_norm
from modelbudget.operations.tape import Active, Tape, empty, running_on

BFLOAT16 = RunConfig(batch=1, length=1, autocast="bfloat16")


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


FULL = "float32", "float64"
THREE = {"m": (3, 6)}
SQUARE = "abk kk"

CASES = [
    Case("three readers", *THREE_READERS, "abc"),
    Case("views", *VIEWS, "abc"),
    Case("two results", *TWO_RESULTS, "abc", layouts=""),
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
            ("three readers", THREE_READERS, "abc", UNREPEATED),
            ("MLP", MLP, "abk mk km", UNREPEATED),
            ("residual sum", RESIDUAL, SQUARE, ""),
            ("packed projections", PACKED, "abk mk", UNREPEATED),
            ("two results", TWO_RESULTS, "abc", ""),
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
            ("three readers", THREE_READERS, "abc"),
            ("MLP", MLP, "abk mk km"),
            ("residual sum", RESIDUAL, SQUARE),
            ("packed projections", PACKED, "abk mk"),
            ("a weight read twice", TWICE, SQUARE),
            (
                "a checkpointed weight read twice",
                (checkpointed(TWICE[0]), checkpointed_program(TWICE[1])),
                SQUARE,
            ),
        )
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_backward_pass_does_what_torchs_does(case):
    assert not list(differences(case))


def test_parameters_of_one_operation_are_updated_as_torch_updates_them():
    """Both gradients are there at once: the order was that of addresses in memory."""
    layer = torch.nn.LayerNorm(4)
    wanted = []
    for name, parameter in layer.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: wanted.append(name))
    layer(torch.ones(2, 4)).sum().backward()
    for _ in range(20):
        updated = []
        with running_on(Tape()) as tape:
            tape.update = lambda leaf, updated=updated: updated.append(leaf.name)
            bias, weight = (make_leaf(empty((4,))) for _ in range(2))
            weight.name, bias.name = "weight", "bias"
            y = layer_norm(empty((2, 4)), 1, weight, bias)
            backward((y, empty((2, 4))))
        assert updated == wanted


def test_operations_of_another_thread_run_on_another_tape():
    """Predictions in several threads had each other's tensors: wrong bytes, or an error."""
    with running_on(Tape()) as tape:
        thread = Thread(target=empty, args=((4,),))
        thread.start()
        thread.join()
    assert tape.peak == 0
