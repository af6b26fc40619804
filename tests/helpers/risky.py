"""An architecture that fails on purpose: when it is built, trained or used."""

import faulthandler
import os
import signal
import time
from typing import Literal, NamedTuple

import torch
from torch import nn

from modelbudget.architecture.base import Architecture, Count


def do(deed: str) -> None:
    match deed:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "crash":
            faulthandler.disable()  # which would print where the tests were
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
        case "raise":
            raise RuntimeError("not\n   enough memory")
        case "hang":
            time.sleep(600)
        case "fill":
            list(range(10**12))


class Risky(Architecture):
    """A linear layer that does something else first: while it is built, trained or used."""

    width: Count
    deed: Literal["nothing", "kill", "crash", "exit", "raise", "hang", "fill"]
    when: Literal["build", "training", "use"] = "build"

    @staticmethod
    def parameters(a):
        return {}

    def build(self):
        if self.when == "build":
            do(self.deed)
            return nn.ModuleDict({"only": nn.Linear(self.width, 1, bias=False)})
        return RiskyModule(self.width, self.deed, self.when)


class Output(NamedTuple):
    logits: torch.Tensor
    past_key_values: torch.Tensor


class RiskyModule(nn.Module):
    def __init__(self, width: int, deed: str, when: str):
        super().__init__()
        self.deed, self.when = deed, when
        self.embedding, self.head = nn.Embedding(8, width), nn.Linear(width, 8, bias=False)

    def forward(self, tokens):
        if self.when == ("training" if self.training else "use"):
            do(self.deed)
        states = self.embedding(tokens)
        return Output(self.head(states), states)
