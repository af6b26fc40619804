"""Timelines of layers in inference."""

from types import SimpleNamespace

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import bytes_of
from modelbudget.components import norm
from modelbudget.components.attention.of_model import model_positions, model_tables
from modelbudget.components.layers.layer_parts import n_layers, parts
from modelbudget.components.mixers import mixers
from modelbudget.memory.inference_peak import Step
from modelbudget.memory.timeline import Allocation, Timeline, times, within


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
    return model_tables(a, one) + model_positions(a, one, new)


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
