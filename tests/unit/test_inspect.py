"""Inspecting modules in processes of their own."""

import os
import time

import torch
from helpers.risky import Risky
from torch import nn

from modelbudget.measurement.trace.module_tree import inspect, tree
from modelbudget.sweeps.derive import named_architecture


def test_a_model_that_cannot_be_built_fails_alone():
    deeds = ["nothing", "kill", "raise", "hang", "exit", "nothing"]
    models = {
        f"{i}": (Risky(width=i, deed=deed), 1 if deed == "hang" else 600)
        for i, deed in enumerate(deeds, start=1)
    }
    started = time.monotonic()
    found = inspect(tree, models, 2)
    assert time.monotonic() - started < 30  # each model has its own time
    assert list(found) == list(models)
    assert [one.get("failure") or one["parameters"] for one in found.values()] == [
        1,
        "killed by signal 9, probably out of memory",
        "RuntimeError: not enough memory",
        "no answer within 1 s",
        "its process ended with exit status 3",
        6,
    ]


def test_models_are_built_on_meta_in_processes_of_their_own(catalogue):
    def look(model: nn.Module):
        return {str(p.device) for p in model.parameters()}, os.getpid()

    ((devices, process),) = inspect(look, {"palm": (palm(catalogue), 600)}, 2).values()
    assert devices == {"meta"}
    assert process != os.getpid()
    assert torch.empty(1).device.type == "cpu"


def palm(catalogue):
    return named_architecture(catalogue["palm-540b"])
