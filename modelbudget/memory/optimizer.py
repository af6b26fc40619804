"""What an optimizer keeps beside the parameters."""

from modelbudget.architecture.operations import largest
from modelbudget.architecture.run_config import bytes_of, exact_bytes, tokens
from modelbudget.architecture.terms import Term, Terms, part
from modelbudget.components.embedding import INDEX

SINGLE = 4
"""Bytes of a number in single precision."""


def states(r, trained: Terms, tensors: Terms) -> Terms:
    """Bytes of the states of all parameters that get a gradient, of so many tensors.

    Momentum is one number a parameter (Polyak 1964), AdamW's moments are two (Kingma & Ba 2015,
    algorithm 1; Loshchilov & Hutter 2019), and AdamW counts the steps of each tensor in single
    precision. With master weights all that, and the copy itself, is in single precision.
    """
    moments = {"sgd": 0, "momentum": 1, "adamw": 2}[r.optimizer]
    plain = moments * bytes_of(r.dtype)
    each = plain + r.master_weights * (SINGLE * (moments + 1) - plain)
    count = int(r.optimizer == "adamw") * SINGLE
    return {
        name: Term(each * term.each + count * tensors[name].each, term.instances)
        for name, term in trained.items()
    }


def phases(r, trained, of_parameters, states, needed, forward_backward) -> Terms:
    """The peak of each phase of two steps, of which the second finds the states in memory;
    gradients are dropped after each.

    `of_parameters`, `states`, `needed` (what a step needs beside all that it works on): bytes.
    `forward_backward`: the peak of a pass, given the bytes that the optimizer holds already.
    """
    size = bytes_of(r.dtype)
    copies = r.master_weights * exact_bytes(r.dtype) * trained
    stepping = of_parameters + size * trained + copies + states + 2 * INDEX * tokens(r) + needed
    peaks = {
        "first.forward_backward": forward_backward(copies),
        "first.optimizer": stepping,
        "second.forward_backward": forward_backward(states),
        "second.optimizer": stepping,
    }
    return part("", peaks)


def root(r, trained, neighbours: list[tuple]):
    """Bytes that a step needs beside all that it works on: AdamW's root of the second moment, for
    all parameters at once, or for each in turn: then it is divided, which makes it two, and the
    one before is still there.

    `neighbours`: numbers in each tensor, in the one before it, and whether it is there.
    """
    if r.optimizer != "adamw":
        return 0
    plain = bytes_of(r.dtype)
    exact = plain + r.master_weights * (SINGLE - plain)
    needs = (is_there * (2 * size + before) for size, before, is_there in neighbours)
    return exact * (r.foreach * trained + (1 - r.foreach) * largest(*needs))
