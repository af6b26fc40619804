"""A model as one of several devices computes it that divide it among them.

Each device has the same share of the heads, of the hidden channels of MLPs and of the vocabulary
(Shoeybi et al. 2019, §3), so that the formulas of a model hold of a device's share. Norms,
positions, biases of row-parallel matrices, and keys and values of a single head are on each device.
"""

from typing import Any

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import (
    MASKS,
    accumulates,
    bytes_of,
    divides,
    is_divided,
    is_sharded,
)
from modelbudget.architecture.terms import Term, Terms
from modelbudget.components.decoder.decoder_conditions import OF_ONE_DEVICE
from modelbudget.components.layer import BEFORE
from modelbudget.memory import optimizer_states
from modelbudget.memory.timeline import Allocation, Timeline, times


def with_whole_embedding(a: Fields, r: Run, gradients: Terms) -> Terms:
    """Return the gradients of a share, where that of the token embedding is whole on each device.

    Torch has no rule for the gradient of rows of an embedding (`_embedding_ops.py`:
    `embedding_dense_backward_strategy`). Tied, its sum with the head's is divided.
    """
    name = "embedding.token"
    factor = 1 + (1 - a.tied) * (r.tensor_parallel - 1)
    return gradients | {name: Term(factor * gradients[name].each)}


def summed_in_layer(a: Fields, r: Run, first_norm, in_backward) -> tuple[Timeline, Any]:
    """Return how a layer's gradients that devices have computed in part are summed, for FSDP2.

    One after the other in the order of the module, each by a copy: of keys and values of a single
    head, and with sequence parallelism of norms, of which autograd still holds the first one's.

    `first_norm`: bytes of that; `in_backward` 0: after the backward pass, when it does not. Also
    returns how many bytes it holds.
    """
    if not is_divided(r):
        return [], 0
    size, divided = bytes_of(r.dtype), divides(r) * r.sequence_parallel
    keys = divides(r) * a.has_whole_keys * size * a.d_head * a.d_model
    n_norm = a.norm_scale * (1 - in_backward * a.parallel * a.shared_norm)
    kept, norms = divided * in_backward * first_norm, divided * n_norm * size * a.d_model
    return [
        Allocation("keys or values summed over devices", keys, keys),
        Allocation("first norm summed over devices", kept),
        Allocation("another norm summed over devices", norms, norms),
    ], kept


def summed_in_rest(a: Fields, r: Run, token) -> Timeline:
    """Return how the gradients outside of layers come to the placement of their parameters.

    Of the untied token embedding's, whole on each device, a share of `token` bytes is copied; norms
    are summed with sequence parallelism.
    """
    has_norm = a.norm_scale * (1 - (1 - a.embedding_norm) * (1 - a.final_norm))
    of_norm = r.sequence_parallel * has_norm * bytes_of(r.dtype) * a.d_model
    timeline = [
        Allocation("share of the embedding's gradient", token, r.tensor_parallel * token),
        Allocation("norm summed over devices", of_norm, of_norm),
    ]
    return times(divides(r), timeline)


def known(quantity: str, a: Fields, r: Run):
    """1 where a quantity of one of several devices has a formula, else 0.

    Those of inference, where each device computes all tokens, and torch masks those of others.
    Gradients of heads that several devices have would be summed over them, which no code does.
    """
    if quantity in ("parameter_bytes", "flops_forward"):
        return 1
    is_whole = 1 - a.inner_norm  # else it gathers what devices divide, which a program alone knows
    if quantity in OF_ONE_DEVICE:
        is_known = known_peak(a, r) if quantity == "peak_training_bytes" else 1
        return is_whole * (1 - a.has_copied_keys) * is_known
    return is_whole * (1 - r.sequence_parallel)


def known_peak(a: Fields, r: Run):
    """1 where the peak of training of one of several devices has a formula, else 0.

    Optimizers without temporary tensors of their own divide copies of gradients that are whole; a
    buffer and shards have parts of them. Without a norm before it, a part gathers the length of the
    residual stream itself. The gradient of the only head of keys is transposed where neither RoPE
    nor a fused kernel copies it; its own copy is then of a sum over devices, which is divided
    before it meets others. Shifted labels, MLA, biases of scores, divided
    experts and factorised embeddings have a program alone.
    """
    gathers = r.sequence_parallel * int(a.norm_placement not in BEFORE)
    transposed = int(a.position != "rotary" and r.attention_kernel == "math") * a.has_whole_keys
    in_parts = accumulates(r) + is_sharded(r) - accumulates(r) * is_sharded(r)
    has_temporaries = optimizer_states.has_two_temporaries(r) * (1 - r.fused * (1 - in_parts))
    has_formula = r.targets == "given" and a.position not in MASKS
    has_formula = has_formula and a.qk_norm in ("none", "shared") and "mla" not in a.mixers.split()
    of_experts = 1 - int("moe" in a.mlps.split()) * (1 - r.sequence_parallel)
    has_formula = int(has_formula) * (1 - positive(a.d_emb))
    return has_temporaries * (1 - gathers) * (1 - transposed) * has_formula * of_experts
