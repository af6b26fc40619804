"""States between the parts of a layer: bytes of inputs, outputs and their gradients."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of, computed_again, divides, of_states, tokens
from modelbudget.components import norm
from modelbudget.components.contract import Place
from modelbudget.components.layers.layer_fields import AFTER, BEFORE
from modelbudget.components.layers.layer_parts import all_parts
from modelbudget.components.mixers import mixers
from modelbudget.memory.timeline import Timeline, all_gather, times


def place_of(a: Fields, r: Run, name: str) -> Place:
    """Return the position of a part in its layer: a mixer is first, a feed-forward part second."""
    shared = a.parallel * a.shared_norm
    alone = 1 - is_summed(r, name)  # over devices, before it meets another
    # Without a norm before it, a part reads the residual stream itself, whose gradient is there.
    straight = int(a.norm_placement not in BEFORE)
    _, given = output_backward(a, r, name)
    if name in mixers():
        return Place(given=given, others=alone * (shared + straight), is_first=straight)
    stops = computed_again(r) * (1 - int(a.norm_placement in AFTER))
    # Divided over the length, each gathers a copy, and saves it.
    own = 1 - shared * (1 - r.sequence_parallel)
    return Place(given=given, saves_input=own, others=alone * straight, stops=stops)


def output_backward(a: Fields, r: Run, name: str) -> tuple[Timeline, object]:
    """Return the timeline from the gradient of the residual stream to that of a part's output.

    Also the bytes of that gradient that the part owns: all, or none if it is the residual stream's
    own.
    """
    s = of_states(r)
    normed = {
        "pre": [],
        "post": norm.backward(a, s),
        "output": norm.backward(a, s, given=0),
        "both": norm.backward(a, s, given=0),
    }[a.norm_placement]
    output = states_bytes(a, r)
    own = int(a.norm_placement in ("output", "both"))
    whole, gathers = whole_states_bytes(a, r), r.sequence_parallel * is_summed(r, name)
    at_first = gathers_first(a, r, name)
    gathered = times((1 - at_first) * gathers, all_gather(r, whole, own))
    return [*normed, *gathered], gathers * whole + (1 - gathers) * own * output


def is_summed(r: Run, name: str):
    """1 where devices each compute a term of a part's output, and of its input's gradient."""
    return divides(r) * (1 - int(getattr(all_parts()[name], "OF_OWN_TOKENS", False)))


def gathers_first(a: Fields, r: Run, name: str):
    """1 where a layer's backward pass begins with gathering the length of the output's gradient.

    That reads nothing saved, and comes before a repeated forward pass; a norm reads.
    `name`: of the part. A layer without a second one gathers for the first.
    """
    is_second = int(name not in mixers()) * is_summed(r, name)
    return is_second * r.sequence_parallel * int(a.norm_placement == "pre")


def states_bytes(a: Fields, r: Run):
    """Bytes of the residual stream: with sequence parallelism, of a device's part of the length."""
    return whole_states_bytes(a, of_states(r))


def whole_states_bytes(a: Fields, r: Run):
    return bytes_of(r.dtype) * tokens(r) * a.d_model
