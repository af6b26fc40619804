"""Values of a whole decoder by component: those of its layers, and of both ends."""

from collections.abc import Callable
from typing import Any

from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, layer, norm
from modelbudget.components.contract import Part, Values
from modelbudget.memory import adamw_temporaries, shards
from modelbudget.memory.adamw_temporaries import Tensor


def parameters_of(a: Fields, of_part: Callable[[Part], Values]) -> Terms:
    ends = {"embedding.position": embedding.position(a), **embedding.factorised(a)}
    held = {name: of_part(one) for name, one in layer.parts(a).items()}
    return of_model(a, ends, held, norm.parameters(a))


def of_model(a: Fields, ends: Values, held: dict[str, Values], one_norm=0) -> Terms:
    """Combine the terms of all layers with those of both ends of the model.

    `held`: the values of each part of a layer, by name; `ends`: those of embedding and head.
    """
    return around_layers(a, ends, one_norm) | layer.in_layers(a, held, one_norm)


def around_layers(a: Fields, ends: Values, one_norm) -> Terms:
    """Return the terms of embedding and head, and of the norms between them and the layers."""
    norms = {"embedding": a.embedding_norm * one_norm, "final": a.final_norm * one_norm}
    return part("", ends) | part("norm", norms)


def of_tensors(a: Fields, value: Callable[[Tensor], Any]) -> Terms:
    """Sum a value of each parameter tensor that gets a gradient, by component."""
    ends = adamw_temporaries.sums([*embedding.tensors(a), *embedding.head_tensors(a)], value)
    held = {
        name: adamw_temporaries.sums(one.tensors(a), value) for name, one in layer.parts(a).items()
    }
    one_norm = sum(adamw_temporaries.sums(norm.tensors(a, ""), value).values())
    return of_model(a, ends, held, one_norm)


def in_shards(a: Fields, r: Run) -> Terms:
    """Count the numbers of a device's shards, with their padding."""
    return of_tensors(a, lambda tensor: shards.with_padding(r, tensor))


def in_own_rows(a: Fields, r: Run) -> Terms:
    """Count the numbers of a device's own rows."""
    return of_tensors(a, lambda tensor: shards.own(r, tensor))
