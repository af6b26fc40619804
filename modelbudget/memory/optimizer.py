"""Optimizer states, and the phases of a training step."""

from modelbudget.architecture.operations import ceil_div, largest
from modelbudget.architecture.run_values import (
    accumulates,
    bytes_of,
    exact_bytes,
    keeps_gradients_in_buckets,
    replicas,
)
from modelbudget.architecture.terms import Term, Terms, part
from modelbudget.memory.adamw_temporaries import Neighbours, largest_pair

SINGLE = 4
"""Bytes of a number in single precision."""


def states(r, trained: Terms, tensors: Terms) -> Terms:
    """Count the bytes of the optimizer states of each component.

    `trained`: the parameters that get a gradient; `tensors`: the number of their tensors.

    Momentum is one number a parameter (Polyak 1964), AdamW's moments are two (Kingma & Ba 2015,
    algorithm 1; Loshchilov & Hutter 2019), and AdamW counts the steps of each tensor in single
    precision. With master weights all that, and the copy itself, is in single precision.
    """
    moments = {"sgd": 0, "momentum": 1, "adamw": 2}[r.optimizer]
    plain = moments * bytes_of(r.dtype)
    each = plain + r.master_weights * (SINGLE * (moments + 1) - plain)
    count = int(r.optimizer == "adamw") * SINGLE
    none = Term(0)
    return {
        name: Term(each * term.each + count * tensors.get(name, none).each, term.instances)
        for name, term in trained.items()
    }


def of_part(r, trained):
    """Count the numbers of a device's part of all `trained` parameters, with `zero: 1`.

    Nothing is padded: the last device's part may be smaller than the others.
    """
    chunk = ceil_div(trained, replicas(r))
    if r.data_rank == "first":
        return chunk
    return largest(0, trained - (replicas(r) - 1) * chunk)


def states_of_part(r, own) -> Terms:
    """Count the bytes of the optimizer states of `own` numbers, which are one tensor.

    Their float32 copy and the moments (Rajbhandari et al. 2020, §5.1).
    """
    return states(r, {"model": Term(own)}, {"model": Term(1)})


def phases(r, trained, held, states, temporaries, forward_backward, own=None) -> Terms:
    """Peak bytes of each phase of two steps; the second finds the optimizer states in memory.

    Gradients are freed after each step. `trained`: parameters that get a gradient;
    `held`, `states`, `temporaries`: bytes of all parameters and texts, of the optimizer states, of
    the optimizer's temporary tensors; `forward_backward`: the peak of a pass, a function of the
    bytes that the optimizer holds already.

    Gradients that are cast one by one leave their float32 copies (Megatron-Core,
    optimizer/optimizer.py, `_copy_model_grads_to_main_grads`). The last cast needs less than
    AdamW's temporaries do. A buffer of gradients is there from the start, and stays
    (distributed/param_and_grad_buffer.py).
    """
    is_apart = int(r.gradient_casts == "together") * (1 - keeps_gradients_in_buckets(r))
    size = bytes_of(r.dtype) * is_apart
    copies = r.master_weights * exact_bytes(r.dtype) * trained
    stepping = held + size * trained + copies + states + temporaries
    buffer = accumulates(r) * copies
    master = r.master_weights * exact_bytes(r.dtype) * (trained if own is None else own)
    peaks = {
        "first.forward_backward": forward_backward(master + buffer),
        "first.optimizer": stepping,
        "second.forward_backward": forward_backward(states + buffer),
        "second.optimizer": stepping,
    }
    return part("", peaks)


def temporaries(r, trained, neighbours: list[Neighbours]):
    """Count the bytes of AdamW's temporary √v.

    One buffer for all parameters with foreach, before which the step counts are increased by a
    number in a tensor (torch 2.13, `optim/adam.py`: `_multi_tensor_adam`); none if it is fused
    (`_fused_adam`, whose kernel keeps √v in registers: `native/cuda/fused_adam_utils.cuh`);
    otherwise two buffers of the current tensor plus one of the previous tensor, which is not yet
    freed.
    """
    if r.optimizer != "adamw":
        return 0
    plain = bytes_of(r.dtype)
    exact = plain + r.master_weights * (SINGLE - plain)
    at_once = r.foreach * largest(SINGLE, exact * trained)
    one_by_one = (1 - r.foreach) * (1 - r.fused)
    return at_once + one_by_one * exact * largest_pair(neighbours)
