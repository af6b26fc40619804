"""A layer: a mixer and a feed-forward part with their norms, in sequence or in parallel.

Everything here iterates over the parts that a model's patterns name (`contract.py`).
"""

import operator
from collections.abc import Callable
from functools import reduce
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from pydantic import Field, create_model

from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.layer_groups import LayerGroup, layer_groups
from modelbudget.architecture.layer_pattern import instances
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_config import (
    bytes_of,
    casts,
    computed_again,
    divides,
    drops_outputs,
    of_states,
    products,
    tokens,
)
from modelbudget.architecture.terms import Term, Terms, join, merged, part
from modelbudget.components import contract, dropout, embedding, norm
from modelbudget.components.contract import Part, Place, Values
from modelbudget.components.feed_forward import feed_forward, mlp, moe
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.mixers import attention, mixers
from modelbudget.components.mixers.attention import AttentionFields
from modelbudget.memory.adamw_temporaries import Tensor
from modelbudget.memory.inference import Step
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    accumulate,
    all_gather,
    all_reduce,
    change,
    times,
    within,
)
from modelbudget.memory.training import Layers

BEFORE, AFTER = ("pre", "both"), ("post", "output", "both")
"""Norm placements with a norm before each part, and with one after it."""


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


def all_parts() -> dict[str, Part]:
    """Every part that a layer can have, by its name."""
    return mixers() | feed_forward()


def fields_of_parts() -> Any:
    """Build a record with the fields of all parts, for families that find parts by folder."""
    kinds = [one.FIELDS for one in (feed_forward() | mixers()).values()]
    own = [kind for kind in kinds if not any(issubclass(k, kind) and k is not kind for k in kinds)]
    return create_model("PartFields", __base__=tuple(own))


def parts(a: Fields) -> dict[str, Part]:
    """Return the parts that a model's patterns name, by name; always `mlp`, for n_dense_layer."""
    names = {*a.mixers.split(), *a.mlps.split(), "mlp"}
    return {name: one for name, one in all_parts().items() if name in names}


def component_name(name: str) -> str:
    """Return the component name of a part."""
    return getattr(all_parts()[name], "NAME", name)


def n_layers(a: Fields) -> dict:
    """Count the layers that have each part, by name."""
    found = instances(a.mixers, a.n_layer) | instances(a.mlps, a.n_layer - a.n_dense_layer)
    found["mlp"] = a.n_dense_layer + found.get("mlp", 0)
    found.pop("none", None)
    return found


def has_formula(quantity: str, a: Fields, r: Run):
    """Return 1 where the parts of a model and the layer provide a formula, else 0.

    Peaks are known of layers with both parts. Full checkpointing of a layer without a feed-forward
    part ends elsewhere.
    """
    no_mixer, no_mlp = ("none" in pattern.split() for pattern in (a.mixers, a.mlps))
    missing = {
        "peak_training_bytes": no_mixer or no_mlp or _norm_elsewhere(a, r),
        "peak_inference_bytes": no_mixer,
        "flops_backward": no_mlp and r.recompute == "full",
    }
    if missing.get(quantity):
        return 0
    holds = int(quantity in contract.FUNCTIONS)
    for one in parts(a).values() if holds else ():
        holds = holds * contract.has_formula(one, quantity, a, r)
    return holds


def _norm_elsewhere(a: Fields, r: Run) -> bool:
    """Whether norms stand elsewhere than before the parts and meet casts, or are written out.

    Written out, those on a part's output have a timeline.
    """
    if a.norm_placement == "post":
        return bool(norm.is_written_out(a, r) or casts(r))
    return bool(casts(r)) and a.norm_placement != "pre"


def parameters(a: Fields) -> Values:
    """Count the parameters of a layer of attention and MLP."""
    return {
        **sublayer(a, "attention", attention.parameters(a), norm.parameters(a)),
        **sublayer(a, "mlp", mlp.parameters(a), norm.parameters(a)),
        **shared_norm(a, norm.parameters(a)),
    }


def sublayer(a: Fields, name: str, values: Values, one_norm) -> Values:
    """Return the values of a part and of its norms, by component.

    One norm before (Radford et al. 2019, §2.3), one after (Vaswani et al. 2017, §3.1), or one at
    each end (Gemma 2, §2). Parallel parts may share theirs.
    """
    return {
        **{join(name, leaf): value for leaf, value in values.items()},
        f"norm.{name}": (1 - a.parallel * a.shared_norm) * one_norm,
        f"norm.{name}_output": int(a.norm_placement == "both") * one_norm,
    }


def shared_norm(a: Fields, one_norm) -> Values:
    """Return the value of the one norm of a parallel layer (PaLM, §2)."""
    return {"norm.shared": a.parallel * a.shared_norm * one_norm}


def in_layers(
    a: Fields, values: dict[str, Values], one_norm=0, second_norm=None, dropped=0
) -> Terms:
    """Return the terms of all layers, from the values of each part, by name.

    `one_norm`: the value of a norm; `second_norm`: of the norm before a feed-forward part, where it
    differs; `dropped`: of the dropout after each part.
    """
    n_layer = n_layers(a)
    terms: Terms = {}
    for name, of_part in values.items():
        own = one_norm if second_norm is None or name in mixers() else second_norm
        held = sublayer(a, component_name(name), of_part, own)
        terms = merged(terms, part("layer", held, n_layer[name]))
    terms |= part("layer", {"dropout": dropped}, sum(n_layer.values()))
    return terms | part("layer", shared_norm(a, one_norm), a.n_layer)


def place_of(a: Fields, r: Run, name: str) -> Place:
    """Return the position of a part in its layer: a mixer is first, a feed-forward part second."""
    shared = a.parallel * a.shared_norm
    alone = 1 - divides(r)  # each part's gradient is summed over devices before it meets another
    # Without a norm before it, a part reads the residual stream itself, whose gradient is there.
    straight = int(a.norm_placement not in BEFORE)
    _, given = _output_backward(a, r, name)
    drops = drops_outputs(r)
    if name in mixers():
        return Place(given=given, others=alone * (shared + straight), is_first=straight)
    stops = computed_again(r) * (1 - int(a.norm_placement in AFTER)) * (1 - drops)
    own = 1 - shared * (1 - r.sequence_parallel)  # divided over the length, each gathers a copy
    return Place(given=given, saves_input=own, others=alone * straight, stops=stops)


def saved_of_second_norm(a: Fields, r: Run):
    """Return the bytes saved by the norm before a feed-forward part.

    In a parallel layer, the mixer's norm has saved the input, unless each saves a copy of its own.
    """
    r = of_states(r)
    return norm.saved(a, r) - a.parallel * (1 - norm.copies_input(a, r)) * _states(a, r)


def saved(a: Fields, r: Run) -> Terms:
    """Bytes saved for backward by all layers, without full checkpointing."""
    held = {name: one.saved(a, r, place_of(a, r, name)) for name, one in parts(a).items()}
    second_norm, s = saved_of_second_norm(a, r), of_states(r)
    found = in_layers(a, held, norm.saved(a, s), second_norm, dropout.saved(a, s))
    tables = attention.model_tables(a, r)
    return merged(found, {"layer.attention": Term(tables)}) if r.rope_tables == "model" else found


def held_in_forward(a: Fields, r: Run):
    """Bytes of positions, masks and embeddings that only the forward pass holds."""
    again, masks = computed_again(r), attention.model_masks(a, r)
    positions = (1 - again) * attention.model_positions(a, r, r.length)
    return positions + masks - again * _masks_read(a, r) + embedding.held_apart(a, r)


def _masks_read(a: Fields, r: Run):
    """Bytes of the masks that layers read; fewer layers than mixers do not read all of them."""
    n_layer = n_layers(a)
    read = (positive(n_layer.get(name, 0)) for name in ("attention", "sliding_attention"))
    return sum(read) * attention.model_mask(r)


def first_input_held(a: Fields, r: Run):
    """Bytes of the first layer's input where later layers hold it, too, and nothing saves it."""
    unsaved = int(a.norm_placement in BEFORE) * norm.copies_input(a, r) * _states(a, r)
    return (1 - computed_again(r)) * embedding.is_held_input(a, r) * unsaved


def buffers(a: Fields, r: Run):
    """Bytes of buffers: frequencies of RoPE for all layers, or the table of each."""
    return attention.model_frequencies(a, r) + attention.complex_tables(a, r)


def held(a: Fields, r: Run):
    """Return the bytes that layers hold through forward and backward and that no operation saves.

    Arguments of layers that are computed again: tables of RoPE, the positions, and masks.
    """
    return computed_again(r) * (read_by_all(a, r) + _masks_read(a, r))


def read_by_all(a: Fields, r: Run):
    """Return the bytes that all layers read: tables of RoPE and positions, made before them."""
    return attention.model_tables(a, r) + attention.model_positions(a, r, r.length)


def _joined(r: Run) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the name and the parts of what is one matrix in this run, by component."""
    found = {}
    if r.projections != "separate":
        found["attention"] = "query_key_value", attention.PACKED
    if mlp.is_packed(r):
        found["mlp"] = "gate_up", ("gate", "up")
    if moe.gathers(r):
        found["moe"] = "gate_up", ("gate", "up")
    return found


def packed(r: Run, terms: Terms, join_values: Callable = operator.add) -> Terms:
    """Return the terms with projections that are one matrix as one.

    `join_values`: of two components' values; the sum, or `largest` for counts of tensors.
    """
    for component, (name, parts_of_one) in _joined(r).items():
        names = [f"layer.{component}.{one}" for one in parts_of_one]
        found = [terms[one] for one in names if one in terms]
        if found:
            joined = Term(reduce(join_values, (term.each for term in found)), found[0].instances)
            terms = {one: term for one, term in terms.items() if one not in names}
            terms[f"layer.{component}.{name}"] = joined
    return terms


def tensors(a: Fields, r: Run, group: LayerGroup) -> list[Tensor]:
    """Parameter tensors of one layer that get a gradient, in the order of the module."""
    n_after = 2 if a.norm_placement == "both" else 0
    return [
        *(
            tensor
            for name in (group.mixer, group.feed_forward)
            if name != "none"
            for tensor in _tensors_of_part(a, r, name)
        ),
        *norm.tensors(a, "norm"),
        *norm.tensors(a, "norm", 1 - a.parallel * a.shared_norm),
        *n_after * norm.tensors(a, "norm"),
    ]


def _tensors_of_part(a: Fields, r: Run, name: str) -> list[Tensor]:
    """Return the tensors of a part; those that are one matrix come as one, after the others."""
    found = all_parts()[name].tensors(a)
    for joined, names in filter(None, [_joined(r).get(component_name(name))]):
        own = [one for one in found if one.name in names]
        weights, biases = (sum(one.numbers for one in own[i::2]) for i in (0, 1))
        others = [one for one in found if one.name not in names]
        found = [*others, Tensor(joined, weights), Tensor(joined, biases, own[1].is_there)]
    return found


def training(a: Fields, r: Run, received: int = 0) -> list[Layers]:
    """Return the timelines of one layer of each group, for the peak of training.

    `received` 1: the gradient of the output is in a buffer that stays.
    """
    return [
        Layers(
            group,
            _forward(a, r, group),
            _backward(a, r, group, received),
            _cast_of_gradient(a, r, group.feed_forward),
            _cached_casts(a, r, group) + _cast_weights(a, r, group),
        )
        for group in layer_groups(a)
    ]


def _saved_by(a: Fields, r: Run, group: LayerGroup):
    """Bytes saved by one layer of a group, without full checkpointing."""
    s = of_states(r)
    held = [
        sublayer(a, "", all_parts()[name].saved(a, r, place_of(a, r, name)), of_norm)
        for name, of_norm in (
            (group.mixer, norm.saved(a, s)),
            (group.feed_forward, saved_of_second_norm(a, r)),
        )
    ]
    held.append(shared_norm(a, norm.saved(a, s)))
    return sum(sum(values.values()) for values in held) + 2 * dropout.saved(a, s)


def _forward(a: Fields, r: Run, group: LayerGroup) -> Timeline:
    """From the input, which is live, to all that is saved.

    The mixer with its dropout or sum, and the end of the layer, may take more than backward does
    later. Everything else is one allocation of the bytes that stay.
    """
    mixer, second = all_parts()[group.mixer], all_parts()[group.feed_forward]
    s = of_states(r)
    states, masks = _states(a, r), dropout.saved(a, s)
    mixed_output, output = _output(a, r, group.mixer), _output(a, r, group.feed_forward)
    before, after = (int(a.norm_placement in those) for those in (BEFORE, AFTER))
    n_norm = before * (1 + a.parallel * (1 - a.shared_norm))
    again = computed_again(r)
    # A norm that copies its input leaves it to the residual sum, or to the checkpoint.
    unsaved, temporary = (
        before * one for one in (norm.copies_input(a, r) * states, norm.forward_temporaries(a, s))
    )
    is_first = 1 - positive(group.last)
    held = (1 - again) * held_in_forward(a, r) + (1 - is_first) * first_input_held(a, r)
    own_held = (1 - a.parallel) * is_first * first_input_held(a, r)
    input_freed = (1 - again) * (1 - a.parallel) * unsaved - own_held
    # With autocast, parts save casts of a norm's output, which is live until they are done; divided
    # over the length, they save what they gather of it.
    copied = casts(r) + r.sequence_parallel
    normed = copied * before * (1 - a.parallel) * states
    gathered = r.sequence_parallel * _whole_states(a, r)
    in_sum = 0 if _norm_of_output(a, r) else masks
    # Computed before the layer is: the cast at the end of a norm saves nothing.
    output_gradient = (
        again * after * norm.scales_exactly(a, r) * 2 * norm.copies_input(a, r) * states
    )
    mixed = [
        Allocation("output gradient in single precision", output_gradient),
        Allocation("positions and embeddings", held),
        Allocation("norm", n_norm * (norm.saved(a, s) + unsaved) + temporary, temporary),
        Allocation("gathered over the length", gathered),
        *within(group.mixer, mixer.forward(a, r, place_of(a, r, group.mixer))),
        Allocation("normalised states, freed", 0, normed),
        *_norm_of_output(a, r),
        Allocation("dropout or residual sum", states + in_sum, mixed_output + in_sum + input_freed),
    ]
    place = place_of(a, r, group.feed_forward)
    then = second.forward(a, r, place)
    # At the end are live: the output, what the part still holds, and in a parallel layer the
    # mixer's output; then dropout's result and the layer's output. A repeated forward pass ends
    # with what dropout or a norm saves of it, or else with what is read last; a CPU's dropout
    # saves a factor before it multiplies.
    at_end = masks + after * norm.saved(a, s)
    outputs = (1 - place.stops) * output + a.parallel * states
    cached = _cached_casts(a, r, group)
    kept = _saved_by(a, r, group) - states + again * unsaved - change(mixed) + cached
    residual = (1 - a.parallel * again) * unsaved + held + own_held + output_gradient
    residual += copied * a.parallel * n_norm * states
    between = kept - at_end - change(then) + outputs + residual
    of_norm = (1 - a.parallel) * before * norm.is_written_out(a, r) * (states + temporary)
    dropped = drops_outputs(r) * (1 - again * int(r.backend == "cpu") * (1 - after))
    normed_output = _norm_of_output(a, r, again)
    if normed_output:
        dropped = 0
    ended = (1 - again) * states + again * dropped * output + in_sum
    return [
        *mixed,
        Allocation("saved by norms and dropout, parallel output", between),
        Allocation("norm of the second part", of_norm, of_norm),
        Allocation("normalised states", normed),
        *within(group.feed_forward, then),
        Allocation("normalised states, freed", 0, normed),
        *normed_output,
        Allocation(
            "dropout, norm and residual sum",
            ended,
            outputs + residual + ended - at_end + change(normed_output),
        ),
        Allocation("casts of biases, freed", 0, again * cached),
    ]


def _norm_of_output(a: Fields, r: Run, stops=0) -> Timeline:
    """Return the timeline of a written-out norm of a part's output, from that output to its own.

    `stops` 1: the last operation of a repeated forward pass, whose result is not computed.
    """
    if a.norm_placement not in ("output", "both") or not norm.is_written_out(a, r):
        return []
    states = _states(a, r)
    saved, temporary = norm.saved(a, r), norm.forward_temporaries(a, r)
    unsaved, masks = norm.copies_input(a, r) * states, dropout.saved(a, r)
    again = stops * (states + norm.scales_exactly(a, r) * temporary)
    dropped = Allocation("dropout", drops_outputs(r) * states + masks, drops_outputs(r) * states)
    made = saved + unsaved + temporary
    return [
        dropped,
        Allocation("norm of the output", made - again, made - again - (1 - stops) * saved),
    ]


def _cached_casts(a: Fields, r: Run, group: LayerGroup):
    """Bytes of casts of biases that autocast keeps to the end of a layer's forward pass."""
    return sum(one.cached_casts(a, r) for one in _parts_of(group)) if casts(r) else 0


def _cast_weights(a: Fields, r: Run, group: LayerGroup):
    """Bytes of casts of weights, which a layer saves unless it is computed again."""
    again = casts(r) * computed_again(r)
    return sum(one.cast_weights(a, r) for one in _parts_of(group)) if again else 0


def _parts_of(group: LayerGroup) -> list[Part]:
    return [all_parts()[name] for name in (group.mixer, group.feed_forward)]


def _backward(a: Fields, r: Run, group: LayerGroup, received: int = 0) -> Timeline:
    """From the gradient of the layer's output, which has been cast, to that of its input."""
    two_norms = a.parallel * (1 - a.shared_norm)
    before = int(a.norm_placement in BEFORE)
    of_mixer, of_second = (
        _output_backward(a, r, name)[0] for name in (group.mixer, group.feed_forward)
    )
    again, unsaved = computed_again(r), before * norm.copies_input(a, r) * _states(a, r)
    mixer, second = (
        within(name, all_parts()[name].backward(a, r, place_of(a, r, name)))
        for name in (group.mixer, group.feed_forward)
    )
    # The last reader of the output's gradient frees it.
    stays = times(received, [Allocation("buffer of the output's gradient", _states(a, r))])
    is_post = int(a.norm_placement == "post")
    straight = int(a.norm_placement not in BEFORE)
    summed, met = all_reduce(r, _whole_states(a, r)), accumulate(_states(a, r))
    has_first = 1 - positive(group.first)
    mixer = [one._replace(freed_once=has_first * one.freed_once) for one in mixer]
    return [
        *of_second,
        *times(is_post, stays),
        *second,
        *summed,
        *times(divides(r) * straight, met),
        *times(1 - a.parallel, [*_input_backward(a, r), *times(1 - is_post, stays)]),
        *_cast_of_gradient(a, r, group.mixer),
        *of_mixer,
        *mixer,
        *summed,
        *times(divides(r) * (straight + a.parallel * a.shared_norm), met),
        *times(two_norms, norm.backward(a, of_states(r), residual=1, others=1)),
        *_input_backward(a, r),
        *times(a.parallel, stays),
        *times(again, [Allocation("layer's input", 0, unsaved, _freed_once(a, r, group))]),
    ]


def _freed_once(a: Fields, r: Run, group: LayerGroup):
    """Return the bytes that the first layer of a group frees, as the last one that reads them."""
    found = (1 - positive(group.first)) * read_by_all(a, r)
    if component_name(group.mixer) != "attention":
        return found
    reads_last = 1
    for other in layer_groups(a):
        if other.mixer == group.mixer:
            reads_last *= 1 - other.is_there * positive(group.first - other.first)
    return found + reads_last * attention.model_mask(r)


def _output_backward(a: Fields, r: Run, name: str) -> tuple[Timeline, object]:
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
    output = _output(a, r, name)
    own = max(int(a.norm_placement in ("output", "both")), casts(r) * (1 - _is_wide(name)))
    dropped = [Allocation("dropout gradient", output, dropout.saved(a, s) + own * output)]
    drops = drops_outputs(r)
    own = 1 - (1 - own) * (1 - drops)
    whole, gathers = _whole_states(a, r), r.sequence_parallel
    found = [*normed, *times(drops, dropped), *all_gather(r, whole, own)]
    return found, gathers * whole + (1 - gathers) * own * output


def _cast_of_gradient(a: Fields, r: Run, name: str) -> Timeline:
    """Return the cast of the residual stream's gradient to the dtype of a part's output."""
    cast = [Allocation("output gradient in the dtype of autocast", _output(a, r, name))]
    return times(casts(r) * (1 - _is_wide(name)), cast)


def _input_backward(a: Fields, r: Run) -> Timeline:
    """Return the backward timeline of the norm before a part; empty if there is none."""
    return norm.backward(a, of_states(r), residual=1) if a.norm_placement in BEFORE else []


def _is_wide(name: str) -> int:
    """1 where a part's output has the dtype of the states, with autocast too."""
    return int(getattr(all_parts()[name], "WIDE_OUTPUT", False))


def _output(a: Fields, r: Run, name: str):
    """Bytes of the output of a part."""
    return _states(a, r if _is_wide(name) else products(r))


def _states(a: Fields, r: Run):
    """Bytes of the residual stream: with sequence parallelism, of a device's part of the length."""
    return _whole_states(a, of_states(r))


def _whole_states(a: Fields, r: Run):
    return bytes_of(r.dtype) * tokens(r) * a.d_model


def inference(a: Fields, r: Run, new) -> list[Step]:
    """Return the steps of each part with its norms and the residual sum, for `new` tokens.

    The layer's input and shared tables of RoPE are live throughout; in a feed-forward part, so is
    the sum with the mixer's output.
    """
    shared = shared_inference(a, r, new)
    states = bytes_of(r.dtype) * r.batch * new * a.d_model
    n_layer = n_layers(a)
    found = []
    for name, one in parts(a).items():
        second = int(name not in mixers())
        timeline = _with_norms(a, r, new, within(name, one.inference(a, r, new)), second)
        before = (1 + second) * states + shared
        found.append(Step(timeline, before, positive(n_layer[name])))
    return found


def shared_inference(a: Fields, r: Run, new):
    """Bytes of the tables of RoPE that all layers share, and of the positions of `new` tokens."""
    one = SimpleNamespace(dtype=r.dtype, length=new, rope_tables=r.rope_tables)
    return attention.model_tables(a, one) + attention.model_positions(a, one, new)


def _with_norms(a: Fields, r: Run, new, timeline: Timeline, second: int) -> Timeline:
    """Add the norms and the residual sum to the timeline of a part.

    The sum replaces the part's output; parallel parts keep their inputs until both are done.
    """
    states = bytes_of(r.dtype) * r.batch * new * a.d_model
    one_norm = norm.inference(a, r, new, a.d_model)
    added, freed = Allocation("residual sum", states, states), Allocation("states", 0, states)
    if a.norm_placement == "post":
        return [*timeline, added, *one_norm]
    if a.norm_placement == "output":
        return [*timeline, *one_norm, freed, added]
    if a.norm_placement == "both":
        return [*one_norm, *timeline, freed, *one_norm, freed, added]
    n_norm = 1 - a.parallel * a.shared_norm
    first = 1 - second
    return [
        *times(1 - a.parallel, one_norm),
        *times(a.parallel * first, one_norm),
        *times(a.parallel * first * n_norm, one_norm),
        Allocation("inputs of parallel parts", a.parallel * second * (1 + n_norm) * states),
        *timeline,
        Allocation("normalised states", 0, (1 - a.parallel) * states),
        added,
    ]
