"""What the page's calculator reads from programs: peaks of inference and of classes, caches."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain, product
from math import lcm
from typing import Any

from pydantic import ValidationError

from modelbudget.architecture.arithmetic import highest, largest
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.components import embedding
from modelbudget.components.contract import fields_of
from modelbudget.components.layer import all_parts, component_name, parts
from modelbudget.families.decoder import Decoder
from modelbudget.predict.by_program import Quantities, Use, quantities
from modelbudget.quantities.inference_step import inference
from modelbudget.symbolic_programs.least_values import below, extends
from modelbudget.symbolic_programs.moments import Largest
from modelbudget.symbolic_programs.regime import DividedField, Regime, traced
from modelbudget.symbolic_programs.symbolic_sizes import Form

LENGTH, BATCHES = 1024, (2, 1)
"""Runs of the examples: of several sequences and of one, and texts longer than a window."""
MANY = 4
"""Sequences in training, or times the length of one, whose gradients an embedding sorts."""
OF_EXPERTS = (
    lambda a: {"d_shared": 0 if a.d_shared else a.d_expert},
    lambda a: {"n_dense_layer": int(not a.n_dense_layer)},
)
CHANGES = (
    *OF_EXPERTS,
    lambda a: {"n_kv_head": a.n_head},
    lambda a: {"n_kv_head": a.n_head // 2},
    lambda a: {"n_kv_head": 1},
    lambda a: {"gated": not a.gated},
)
"""What a reader may change of a model and still get its peak, as far as that makes a model."""
DIFFERING = ("batch", "gated", "n_head", "n_kv_head", "parallel", "shared_norm", "d_rotary")
"""Fields by which regimes differ."""
OF_PARAMETERS = {
    "tied", "head_bias", "query_bias", "key_bias", "value_bias", "output_bias", "up_bias",
    "down_bias", "norm_bias", "norm_scale", "qk_norm_bias",
}  # fmt: skip
"""Fields on which only the bytes of parameters depend, which are added to those of a regime."""
VARYING = {*Decoder.numeric(), "batch", "length"}
Categories = tuple[tuple[str, str], ...]
"""Categorical fields of an architecture with their values."""
Trace = Callable[[Any, RunConfig, Iterable[DividedField]], Regime]
"""Makes the regime of a model and a run, with the divided fields of those of similar models."""


def categories_of(a: Any) -> Categories:
    """Return the categorical fields of a decoder with their values."""
    return tuple((name, getattr(a, name)) for name in Decoder.categorical())


class Programs:
    """Regimes of the models of the catalogue.

    `examples`: models by their categorical fields, and by the name of their class.
    """

    def __init__(self, examples: Mapping[Categories | str, Sequence[Architecture]]):
        self.examples = examples
        self._regimes: dict[tuple, list[Regime]] = {}
        self._divided: dict[str, dict[DividedField, None]] = defaultdict(dict)
        """By mixers: the divided fields of their regimes, each once."""

    def largest(self, trace: Trace, a, r, class_name: str = "") -> tuple[dict[str, Any], Any]:
        """Return the size of each component that `trace` reads, and where sizes are known.

        Nowhere is 0. Where two regimes hold both are exact, and so is the larger. Without a class
        of `transformers` it is of our modules.
        """
        fields = vars(a) | vars(r) | _padded(a)
        sizes, holds = defaultdict(list), []
        for regime in self._of(trace, a, r, class_name):
            is_here, values = regime.holds(fields), regime.read(fields)
            (of_components,) = regime.quantities.values()
            for name, size in of_components.items():
                sizes[name].append(values.of(size) * is_here)
            holds.append(is_here)
        known = largest(*holds) if holds else 0
        return {name: largest(*of_regimes) for name, of_regimes in sizes.items()}, known

    def _of(self, trace: Trace, a, r, class_name: str) -> list[Regime]:
        categories = categories_of(a)
        settings = vars(r) | {"length": LENGTH}
        if trace is not training_peak:
            settings["recompute"] = "none"  # nothing is computed again
        key = categories, trace, *(n for name, n in settings.items() if name != "batch")
        if key not in self._regimes:
            models = self.examples.get(class_name or categories, ())
            self._regimes[key] = self._traced(trace, categories, settings, models)
        return self._regimes[key]

    def _traced(
        self, trace: Trace, categories: Categories, settings: dict, examples: Sequence[Architecture]
    ) -> list[Regime]:
        regimes: list[Regime] = []
        without_program: list[Regime] = []
        tried: set[tuple[int, frozenset[str]]] = set()
        mixers = dict(categories)["mixers"]
        n_changed = 2 if mixers == "mla" else 1  # one with latent queries, one without
        n_changed *= trace is not training_peak
        models = chain(examples, *map(_changed, examples[:n_changed]))
        cases = ((model, *sizes) for model in models for sizes in _runs(model, trace))
        for a, length, batch in cases:
            run = _run(tuple((settings | {"batch": batch, "length": length}).items()))
            numbers = dict(a) | dict(run) | _padded(a)
            # Each field that extends a regime was tried alone: with another it is tried too.
            holding = [
                (id(other), below(other, numbers)) for other in regimes if other.holds(numbers)
            ]
            is_known = any(len(lower) < 2 or (key, lower) in tried for key, lower in holding)
            if is_known or run_mistake(a, run):
                continue
            if any(other.holds(numbers) for other in without_program):
                continue
            regime = trace(a, run, [*self._divided[mixers], *_divided_by_numbers(regimes)])
            unread = _without_effect(a, trace)
            # In an order in which regimes have the same products of conditions first.
            regime.numbers = {
                name: regime.numbers[name]
                for name in sorted(regime.numbers, key=lambda name: (name in DIFFERING, name))
                if name not in unread
            }
            if not regime.quantities:
                without_program.append(regime)
                continue
            wider = next((earlier for earlier in regimes if extends(earlier, regime)), None)
            if wider is None:
                regimes = [*(other for other in regimes if not other.holds(numbers)), regime]
            else:
                tried.add((id(wider), below(wider, numbers)))
        self._divided[mixers] |= dict.fromkeys(_divided_by_numbers(regimes))
        return regimes


@cache  # most models have the same runs
def _run(settings: tuple[tuple[str, Any], ...]) -> RunConfig:
    return RunConfig.model_validate(dict(settings))


def beyond_caches(a: Any, run: RunConfig, divided: Iterable[DividedField]) -> Regime:
    """Return the regime of a model and of deeper ones: bytes of inference at its peak.

    But for parameters and caches.
    Inference keeps nothing of a layer but its cache, so that layers of each kind, first, last and
    between others, are enough.
    """
    period = lcm(len(a.mixers.split()), len(a.mlps.split()))
    n_layer = min(a.n_layer, a.n_dense_layer + period + 2)
    shallow = a.model_copy(update={"n_layer": n_layer} | _padded(a))
    regime = traced(_beyond, shallow, run, VARYING, divided)
    if n_layer < a.n_layer:
        del regime.numbers["n_layer"]
        regime.symbols.fields["n_layer"] = "n_layer", Form()
        regime.least["n_layer"] = n_layer
    return regime


def training_peak(a: Any, run: RunConfig, divided: Iterable[DividedField]) -> Regime:
    """Return the regime of a model: bytes at the peak of training on one device."""
    peak = partial(_quantity, "training", "resident_peak_bytes")
    return traced(peak, a.model_copy(update=_padded(a)), run, VARYING, divided)


def caches(a: Any, run: RunConfig, divided: Iterable[DividedField]) -> Regime:
    """Return the regime of a model: its caches by component."""
    return traced(partial(_quantity, "caches", "cache_bytes"), a, run, VARYING, divided)


def _changed(a: Any) -> Iterator[Architecture]:
    """Yield a model with each change that makes a legal one.

    A run of plain attention with symbols takes a fiftieth of a second, of other mixers up to one.
    """
    for change in {"attention": CHANGES, "mla": OF_EXPERTS}.get(a.mixers, ()):
        with suppress(ValidationError):
            yield type(a).model_validate(dict(a) | change(a))


def _runs(a: Any, trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield length and batch of the examples: in training also of more tokens than rows."""
    lengths = [min(LENGTH, a.n_ctx) if a.position == "learned" else LENGTH]
    if a.window:  # one that it hides, and one that it shows
        lengths.append(a.window if a.window < LENGTH else 2 * a.window)
    yield from product(lengths, BATCHES)
    if trace is training_peak:
        yield lengths[0], MANY
        longest = lengths[0] if a.position == "learned" else MANY * lengths[0]
        yield from ((longest, batch) for batch in (1, 1 + embedding.rows(a) // longest))


def _divided_by_numbers(regimes: Iterable[Regime]) -> Iterator[DividedField]:
    """Yield the divided fields of regimes.

    But for those where a field is a multiple of another, which does not hold where they are equal.
    """
    for regime in regimes:
        divided = regime.divided_fields()
        if not any(isinstance(factor, str) for _, form in divided for factor in form.factors):
            yield from divided


def _padded(a: Any) -> dict[str, Any]:
    """Return the fields of a vocabulary with all its rows."""
    return {"n_vocab": embedding.rows(a), "vocab_multiple": 1}


def _beyond(a: Architecture, run: RunConfig) -> Quantities:
    """Return what is live at the peak of inference but for parameters and caches."""
    result = inference(Decoder.program(), a, run, lists_allocations=True)
    held = sum(result.parameter_bytes.values()) + sum(result.caches.values())
    peak = highest(*result.peaks.values())
    peaks = peak.kept if isinstance(peak, Largest) else [peak]
    return {"beyond": {"model": tuple(moment - held for moment in peaks)}}


def _quantity(program: Use, name: str, a: Architecture, run: RunConfig) -> Quantities:
    return {name: quantities(program, a, run)[name]}


def _without_effect(a: Any, trace: Trace) -> set[str]:
    """Return the fields on which nothing but parameters depends, and those of absent parts.

    A part has fields of that whose name it has: windows those of attention. Where all feed-forward
    parts are dense, so are the first ones.
    """
    present = {of for name in parts(a) for of in (name, component_name(name))}
    fields = {name: {*fields_of(part).model_fields} for name, part in all_parts().items()}
    there = set().union(*(fields[name] for name in fields.keys() & present))
    possible = set().union(*fields.values())
    of_parameters = set() if trace is training_peak else OF_PARAMETERS
    return of_parameters | (possible - there) | ({"n_dense_layer"} if a.mlps == "mlp" else set())
