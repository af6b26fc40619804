"""A transformer layer: a mixer and an MLP with their norms, in sequence or in parallel."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.run_config import bytes_of, computed_again, tokens
from modelbudget.architecture.terms import join
from modelbudget.components import attention, attention_core, dropout, mla, mlp, moe, norm
from modelbudget.components.attention import AttentionFields
from modelbudget.components.mlp import MLPFields
from modelbudget.memory.timeline import Node, change, times

BEFORE, AFTER = ("pre", "both"), ("post", "output", "both")
"""Where norms are placed before a part, and where after it."""


class LayerFields(MLPFields, AttentionFields):
    parallel: bool = Field(
        False, description="attention and MLP read the same states and are added up together"
    )
    shared_norm: bool = Field(True, description="parallel: both read one norm's output")
    norm_placement: Literal["pre", "post", "output", "both"] = Field(
        "pre",
        description="norms before attention and MLP; after the residual sum; on the output, "
        "before it is added; or before and on the output",
    )

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "norm_placement == 'pre'",
            "norm_placement = '{norm_placement}': parallel: true allows 'pre' alone",
            when="parallel",
        ),
    )


def parameters(a) -> dict:
    """The plain layer: attention and MLP."""
    return {
        **sublayer(a, "attention", attention.parameters(a), norm.parameters(a)),
        **sublayer(a, "mlp", mlp.parameters(a), norm.parameters(a)),
        **shared_norm(a, norm.parameters(a)),
    }


def sublayer(a, name: str, values: dict, one_norm) -> dict:
    """A mixer or an MLP with its norms: one before (Radford et al. 2019, §2.3), one after
    (Vaswani et al. 2017, §3.1), or one at each end (Gemma 2, §2). Parallel ones may share theirs.
    """
    return {
        **{join(name, leaf): value for leaf, value in values.items()},
        f"norm.{name}": (1 - a.parallel * a.shared_norm) * one_norm,
        f"norm.{name}_output": int(a.norm_placement == "both") * one_norm,
    }


def shared_norm(a, one_norm) -> dict:
    """The one norm of a parallel layer (PaLM, §2)."""
    return {"norm.shared": a.parallel * a.shared_norm * one_norm}


def saved_of_second_norm(a, r):
    """Bytes of the norm before the MLP: a parallel layer's reads what attention's has saved."""
    return norm.saved(a, r) - a.parallel * bytes_of(r.dtype) * tokens(r) * a.d_model


def saved_mask(r, hides):
    """Bytes of the mask of a window, which a core that is computed again is given once more."""
    return int(r.recompute == "selective") * attention_core.owned_mask(r, hides)


def saved(a, r, second: str, hides=0):
    """Bytes that one layer keeps for its backward pass, unless all of it is computed again; with
    attention, whose window `hides` some scores (1) or none.
    """
    read_alone = 1 - a.parallel * a.shared_norm
    mixer = mla if "latent" in a.mixers else attention
    part_of = {"mlp": mlp.saved, "experts": moe.saved}[second]
    parts = [
        sublayer(a, "", mixer.saved(a, r), norm.saved(a, r)),
        sublayer(a, "", part_of(a, r, read_alone), saved_of_second_norm(a, r)),
        shared_norm(a, norm.saved(a, r)),
    ]
    return (
        sum(sum(values.values()) for values in parts)
        + 2 * dropout.saved(a, r)
        + saved_mask(r, hides)
    )


def forward(a, r, second: str, hides=0) -> list[Node]:
    """From the input, which lives already, to all that backward needs; with attention, whose window
    `hides` some scores (1) or none.

    Told are attention with its dropout or sum, and the end of the layer, which alone may take more
    than backward does later; of the rest, what stays.
    """
    states, masks = bytes_of(r.dtype) * tokens(r) * a.d_model, dropout.saved(a, r)
    before, after = (int(a.norm_placement in words) for words in (BEFORE, AFTER))
    n_norm = before * (1 + a.parallel * (1 - a.shared_norm))
    nodes = [(n_norm * norm.saved(a, r), 0), *_mix(a, r, hides), (states + masks, states + masks)]
    # The end: the output, beside what experts still hold, and in a parallel layer attention's; then
    # dropout's and the layer's own. Computed again, it runs up to what a dropout or a norm saves of
    # it, or else to what is read last; a CPU's dropout saves a factor before it multiplies.
    again = computed_again(r)
    stops = again * (1 - after) * (1 - r.dropout)
    of_end = masks + after * norm.saved(a, r)
    rest = saved(a, r, second, hides) - states - change(nodes)
    beside = moe.summed(a, r, stops) if second == "experts" else 0
    output = (1 - stops) * states + a.parallel * states
    dropped = r.dropout * (1 - again * int(r.backend == "cpu") * (1 - after))
    ended = (1 - again * (1 - dropped)) * states + masks
    return [
        *nodes,
        (0, of_end - rest),
        (output + beside, beside),
        (ended, output + ended - of_end),
    ]


def _mix(a, r, hides) -> list[Node]:
    """What mixes the positions: in all layers latent attention, or in none."""
    return mla.forward(a, r) if "latent" in a.mixers else attention.forward(a, r, hides)


def _mix_backward(a, r, *given, hides) -> list[Node]:
    if "latent" in a.mixers:
        return mla.backward(a, r, *given)
    return attention.backward(a, r, *given, hides)


def backward(a, r, second: str, hides=0) -> list[Node]:
    """From the gradient of the layer's output to that of its input."""
    two_norms = a.parallel * (1 - a.shared_norm)
    shared = a.parallel * a.shared_norm
    # Without a norm before it, a part reads the residual stream itself, whose gradient is there.
    straight = int(a.norm_placement in ("post", "output"))
    of_output, given = _output(a, r)
    part_of = {"mlp": mlp.backward, "experts": moe.backward}[second]
    return [
        *of_output,
        *part_of(a, r, given, 1 - shared, straight),
        *times(1 - a.parallel, _input(a, r)),
        *of_output,
        *_mix_backward(a, r, given, shared + straight, straight, hides=hides),
        *times(two_norms, norm.backward(a, r, residual=1, others=1)),
        *_input(a, r),
    ]


def _output(a, r) -> tuple[list[Node], object]:
    """From the gradient of the residual stream to that of a part's output, and how much of it the
    part has for itself: all, or nothing if it is the residual stream's own.
    """
    states = bytes_of(r.dtype) * tokens(r) * a.d_model
    normed = {
        "pre": [],
        "post": norm.backward(a, r),
        "output": norm.backward(a, r, given=0),
        "both": norm.backward(a, r, given=0),
    }[a.norm_placement]
    own = int(a.norm_placement in ("output", "both"))
    dropped = times(r.dropout, [(states, dropout.saved(a, r) + own * states)])
    return [*normed, *dropped], (1 - (1 - own) * (1 - r.dropout)) * states


def _input(a, r) -> list[Node]:
    """The norm before a part, if there is one."""
    return norm.backward(a, r, residual=1) if a.norm_placement in BEFORE else []
