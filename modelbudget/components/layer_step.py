"""Layers in a training step, by closed formulas: states between parts, saved bytes, timelines."""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_groups import LayerGroup, layer_groups
from modelbudget.architecture.run_values import bytes_of, computed_again, divides, of_states, tokens
from modelbudget.architecture.terms import Term, Terms, merged
from modelbudget.components import norm
from modelbudget.components.attention.attention_layout import model_positions, model_tables
from modelbudget.components.contract import Place
from modelbudget.components.layer import (
    AFTER,
    BEFORE,
    NORM_OF_OUTPUT,
    all_parts,
    in_layers,
    parts,
    shared_norm,
    sublayer,
)
from modelbudget.components.mixers import mixers
from modelbudget.memory.timeline import (
    Allocation,
    Layers,
    Timeline,
    accumulate,
    all_gather,
    all_reduce,
    change,
    times,
)


def place_of(a: Fields, r: Run, name: str) -> Place:
    """Return the position of a part in its layer: a mixer is first, a feed-forward part second."""
    shared = a.parallel * a.shared_norm
    is_whole = 1 - is_summed(r, name)  # over devices, before it meets another
    # Without a norm before it, a part reads the residual stream itself, whose gradient is there.
    reads_stream = int(a.norm_placement not in BEFORE)
    _, gradient = output_backward(a, r, name)
    if name in mixers():
        accumulates = is_whole * (shared + reads_stream)
        return Place(gradient=gradient, accumulates=accumulates, is_first=reads_stream)
    return Place(
        gradient=gradient,
        # Divided over the length, each gathers a copy, and saves it.
        saves_input=1 - shared * (1 - r.sequence_parallel),
        accumulates=is_whole * reads_stream,
        stops=computed_again(r) * (1 - int(a.norm_placement in AFTER)),
    )


def output_backward(a: Fields, r: Run, name: str) -> tuple[Timeline, object]:
    """Return the timeline from the gradient of the residual stream to that of a part's output.

    Also the bytes of that gradient that the part owns: all, or none if it is the residual stream's
    own.
    """
    s = of_states(r)
    normed = {
        "pre": [],
        "post": norm.backward(a, s),
        "output": norm.backward(a, s, frees_gradient=0),
        "both": norm.backward(a, s, frees_gradient=0),
    }[a.norm_placement]
    output = states_bytes(a, r)
    owns_gradient = int(a.norm_placement in ("output", "both"))
    whole, gathers = whole_states_bytes(a, r), r.sequence_parallel * is_summed(r, name)
    at_first = gathers_first(a, r, name)
    gathered = times((1 - at_first) * gathers, all_gather(r, whole, owns_gradient))
    return [*normed, *gathered], gathers * whole + (1 - gathers) * owns_gradient * output


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


def saved_of_second_norm(a: Fields, r: Run):
    """Return the bytes saved by the norm before a feed-forward part.

    In a parallel layer, the mixer's norm has saved the input.
    """
    r = of_states(r)
    return norm.saved(a, r) - a.parallel * states_bytes(a, r)


def saved(a: Fields, r: Run) -> Terms:
    """Bytes saved for backward by all layers, without full checkpointing."""
    of_parts = {
        name: component.saved(a, r, place_of(a, r, name)) for name, component in parts(a).items()
    }
    terms = in_layers(a, of_parts, norm.saved(a, of_states(r)), saved_of_second_norm(a, r))
    tables = model_tables(a, r)
    return merged(terms, {"layer.attention": Term(tables)}) if r.rope_tables == "model" else terms


def positions_in_forward(a: Fields, r: Run):
    """Bytes of the positions of RoPE, which only the forward pass has: nothing saves them."""
    return (1 - computed_again(r)) * model_positions(a, r)


def unsaved_embeddings(a: Fields, r: Run):
    """Bytes of embeddings that only a name in the model's forward function holds.

    The first layer's norm saves a copy of them, and not them; a checkpoint saves its argument.
    """
    is_held = int(r.embeddings == "held") * norm.copies_input(a, r)
    return (1 - computed_again(r)) * is_held * states_bytes(a, r)


def arguments_of_checkpoints(a: Fields, r: Run):
    """Bytes that checkpointed layers hold: tables and positions of RoPE.

    They are arguments in a tuple, of which `torch.utils.checkpoint` saves no tensors.
    """
    return computed_again(r) * rope_of_model(a, r)


def rope_of_model(a: Fields, r: Run):
    """Bytes of tables and positions of RoPE that are made once, before all layers."""
    return model_tables(a, r) + model_positions(a, r)


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
    unsaved, temporary = norm.copies_input(a, r) * states, norm.forward_temporaries(a, s)
    positions, embeddings = positions_in_forward(a, r), unsaved_embeddings(a, r)
    is_first = 1 - positive(group.last)  # the layer whose input they are
    input_freed = (1 - again) * unsaved - is_first * embeddings
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
        Allocation("positions and embeddings", positions + (1 - is_first) * embeddings),
        Allocation("norm", n_norm * (norm.saved(a, s) + unsaved) + temporary, temporary),
        Allocation("gathered over the length", gathered),
        *mixer.forward(a, r, place_of(a, r, group.mixer)),
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
    unsaved_at_end = unsaved + positions + embeddings + gathers * a.parallel * n_norm * states
    between = kept - at_end - change(then) + outputs + unsaved_at_end
    of_norm = norm.is_written_out(a, r) * (states + temporary)
    ended = (1 - again) * states + in_sum
    return [
        *mixed,
        Allocation("saved by norms, parallel output", between),
        Allocation("norm of the second part", of_norm, of_norm),
        Allocation("normalised states", second_normed),
        *then,
        Allocation("normalised states, freed", 0, second_normed),
        Allocation("norm and residual sum", ended, outputs + unsaved_at_end + ended - at_end),
    ]


def backward(a: Fields, r: Run, group: LayerGroup, received: int = 0) -> Timeline:
    """From the gradient of the layer's output to that of its input."""
    two_norms = a.parallel * (1 - a.shared_norm)
    of_mixer, of_second = (
        output_backward(a, r, name)[0] for name in (group.mixer, group.feed_forward)
    )
    again, unsaved = computed_again(r), norm.copies_input(a, r) * states_bytes(a, r)
    mixer, second = (
        all_parts()[name].backward(a, r, place_of(a, r, name))
        for name in (group.mixer, group.feed_forward)
    )
    # The last reader of the output's gradient frees it.
    stays = times(received, [Allocation("buffer of the output's gradient", states_bytes(a, r))])
    is_post = int(a.norm_placement == "post")
    reads_stream = int(a.norm_placement not in BEFORE)
    summed = all_reduce(r, whole_states_bytes(a, r))
    added = accumulate(states_bytes(a, r))
    second_summed = is_summed(r, group.feed_forward)
    has_first = 1 - positive(group.first)
    of_model = has_first * rope_of_model(a, r)  # freed by the last layer that reads them
    mixer = [
        allocation._replace(freed_in_first=has_first * allocation.freed_in_first)
        for allocation in mixer
    ]
    return [
        *of_second,
        *times(is_post, stays),
        *second,
        *times(second_summed, [*summed, *times(reads_stream, added)]),
        *times(1 - a.parallel, [*_input_backward(a, r), *times(1 - is_post, stays)]),
        *of_mixer,
        *mixer,
        *summed,
        *times(divides(r) * (reads_stream + a.parallel * a.shared_norm), added),
        *times(two_norms, norm.backward(a, of_states(r), residual=1, keeps_input=1)),
        *_input_backward(a, r),
        *times(a.parallel, stays),
        *times(again, [Allocation("layer's input", 0, unsaved, of_model)]),
    ]


def _input_backward(a: Fields, r: Run) -> Timeline:
    """Return the backward timeline of the norm before a part; empty if there is none."""
    return norm.backward(a, of_states(r), residual=1) if a.norm_placement in BEFORE else []


def training(a: Fields, r: Run, received: int = 0) -> list[Layers]:
    """Return the timelines of one layer of each group, for the peak of training.

    `received` 1: the gradient of the output is in a buffer that stays.
    """
    gathered = all_gather(r, whole_states_bytes(a, r))
    return [
        Layers(
            group,
            forward(a, r, group),
            backward(a, r, group, received),
            times(gathers_first(a, r, group.feed_forward), gathered),
        )
        for group in layer_groups(a)
    ]
