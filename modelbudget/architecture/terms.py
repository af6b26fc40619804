"""The result of a formula: named terms, each with its number of instances in the model."""

from functools import lru_cache
from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import largest, same

GROUP_TITLES = (
    "token embedding", "head", "positions", "attention", "cross-attention", "recurrence",
    "state space", "MLP", "experts", "router", "norms", "other",
)  # fmt: skip
"""Groups of components in the order of stacks and lists: embeddings, layers, small components."""


class Term(NamedTuple):
    """One component: the value of one instance, and the number of instances in the model.

    Both are whatever the reading supplies: integers, Polars columns, SymPy symbols or
    nodes of the calculator's graph.
    """

    each: Any
    instances: Any = 1

    @property
    def total(self):
        return self.each * self.instances


Terms = dict[str, Term]


def join(*names: str) -> str:
    """Join the parts of a component's name with dots; an empty part is left out."""
    return ".".join(filter(None, names))


@lru_cache(maxsize=65_536)
def component_of(path: str) -> str:
    """Return the component of a path: layer.3.mlp.up.weight belongs to layer.mlp.up.

    So does layer.3.mlp.up.original.weight, the frozen original next to a copy.
    """
    names = [name for name in path.split(".") if not name.isdecimal() and name != "original"]
    return ".".join(names[:-1] if names[-1] in ("weight", "bias") else names)


def part(name: str, values: dict[str, Any], instances: Any = 1) -> Terms:
    """Place a component's values in a model: `layer.attention` + `query` → one term."""
    return {join(name, leaf): Term(value, instances) for leaf, value in values.items()}


def scaled(terms: Terms, factor) -> Terms:
    """Each term times a factor."""
    return {name: Term(factor * term.each, term.instances) for name, term in terms.items()}


def merged(*several: Terms) -> Terms:
    """Merge the terms of several layer groups.

    Where two groups have the same component, the instances are added, or the totals where the
    values of one instance differ.
    """
    sums: Terms = {}
    for name, term in (item for terms in several for item in terms.items()):
        earlier = sums.get(name)
        if earlier is None:
            sums[name] = term
        elif same(earlier.each, term.each):
            sums[name] = Term(term.each, earlier.instances + term.instances)
        else:
            sums[name] = Term(earlier.total + term.total)
    return sums


def plus(term: Term, other: Term) -> Term:
    """Add two values of the same component."""
    if same(term.instances, other.instances):
        return Term(term.each + other.each, term.instances)
    return Term(term.total + other.total)


def total(terms: Terms):
    """Return the sum over all components."""
    return sum(term.total for term in terms.values())


def is_peak(quantity: str) -> bool:
    """Whether its components are phases, of which the largest counts and not the sum."""
    return quantity.startswith("peak_")


def of_model(quantity: str, terms: Terms):
    """Return a quantity of the whole model: the maximum of the terms for a peak, else their sum."""
    values = [term.total for term in terms.values()]
    return largest(0, *values) if is_peak(quantity) else sum(values)
