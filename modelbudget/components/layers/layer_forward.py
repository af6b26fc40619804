"""Timeline of a layer's forward pass in training."""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_groups import LayerGroup
from modelbudget.architecture.run_values import computed_again, of_states
from modelbudget.components import norm
from modelbudget.components.layers.by_component import shared_norm, sublayer
from modelbudget.components.layers.layer_fields import AFTER, BEFORE, NORM_OF_OUTPUT
from modelbudget.components.layers.layer_parts import all_parts
from modelbudget.components.layers.layer_saved import (
    first_input_held,
    held_in_forward,
    saved_of_second_norm,
)
from modelbudget.components.layers.layer_states import (
    is_summed,
    place_of,
    states_bytes,
    whole_states_bytes,
)
from modelbudget.memory.timeline import Allocation, Timeline, change, within


def _saved_by(a: Fields, r: Run, group: LayerGroup):
    """Bytes saved by one layer of a group, without full checkpointing."""
    s = of_states(r)
    of_parts = [
        sublayer(a, "", all_parts()[name].saved(a, r, place_of(a, r, name)), of_norm)
        for name, of_norm in (
            (group.mixer, norm.saved(a, s)),
            (group.feed_forward, saved_of_second_norm(a, r)),
        )
    ]
    of_parts.append(shared_norm(a, norm.saved(a, s)))
    return sum(sum(values.values()) for values in of_parts)


def forward(a: Fields, r: Run, group: LayerGroup) -> Timeline:
    """From the input, which is live, to all that is saved.

    The mixer with its sum, and the end of the layer, may take more than backward does later.
    Everything else is one allocation of the bytes that stay.
    """
    mixer, second = all_parts()[group.mixer], all_parts()[group.feed_forward]
    s = of_states(r)
    states = states_bytes(a, r)
    before, after = (int(a.norm_placement in those) for those in (BEFORE, AFTER))
    n_norm = before * (1 + a.parallel * (1 - a.shared_norm))
    again = computed_again(r)
    # A norm that copies its input leaves it to the residual sum, or to the checkpoint.
    unsaved, temporary = (
        before * n_bytes
        for n_bytes in (norm.copies_input(a, r) * states, norm.forward_temporaries(a, s))
    )
    is_first = 1 - positive(group.last)
    held = (1 - again) * held_in_forward(a, r) + (1 - is_first) * first_input_held(a, r)
    own_held = (1 - a.parallel) * is_first * first_input_held(a, r)
    input_freed = (1 - again) * (1 - a.parallel) * unsaved - own_held
    # Divided over the length, parts save what they gather of a norm's output, which is live until
    # they are done.
    gathers = r.sequence_parallel
    normed = gathers * before * (1 - a.parallel) * states
    gathered = gathers * whole_states_bytes(a, r)
    second_gathers = is_summed(r, group.feed_forward) * gathers
    second_normed = second_gathers * before * (1 - a.parallel) * states
    of_output = int(a.norm_placement in NORM_OF_OUTPUT)
    # The norm of an output is live with what it saves, which includes as much as itself.
    in_sum = of_output * norm.saved(a, s)
    mixed = [
        Allocation("positions and embeddings", held),
        Allocation("norm", n_norm * (norm.saved(a, s) + unsaved) + temporary, temporary),
        Allocation("gathered over the length", gathered),
        *within(group.mixer, mixer.forward(a, r, place_of(a, r, group.mixer))),
        Allocation("normalised states, freed", 0, normed),
        Allocation("residual sum", states + in_sum, states + in_sum + input_freed),
    ]
    place = place_of(a, r, group.feed_forward)
    then = second.forward(a, r, place)
    # At the end are live: the output, what the part still holds, and in a parallel layer the
    # mixer's output; then the layer's output. A repeated forward pass ends with what a norm saves
    # of it, or else with what is read last.
    at_end = after * norm.saved(a, s)
    outputs = (1 - place.stops) * states + a.parallel * states
    kept = _saved_by(a, r, group) - states + again * unsaved - change(mixed)
    residual = (1 - a.parallel * again) * unsaved + held + own_held
    residual += gathers * a.parallel * n_norm * states
    between = kept - at_end - change(then) + outputs + residual
    of_norm = (1 - a.parallel) * before * norm.is_written_out(a, r) * (states + temporary)
    ended = (1 - again) * states + in_sum
    return [
        *mixed,
        Allocation("saved by norms, parallel output", between),
        Allocation("norm of the second part", of_norm, of_norm),
        Allocation("normalised states", second_normed),
        *within(group.feed_forward, then),
        Allocation("normalised states, freed", 0, second_normed),
        Allocation("norm and residual sum", ended, outputs + residual + ended - at_end),
    ]
