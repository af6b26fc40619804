"""Values of a whole decoder by component: those of its layers, and of both ends."""

from collections.abc import Callable
from typing import Any

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of, of_states, tokens
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import (
    embedding,
    embedding_step,
    layer,
    layer_step,
    multi_token_prediction,
    norm,
)
from modelbudget.components.contract import Part, Values, tensors_of
from modelbudget.components.parallel import shards
from modelbudget.memory import parameter_tensors
from modelbudget.memory.parameter_tensors import Tensor, numbers


def parameters_of(a: Fields, function: str) -> Terms:
    """Count parameters by a function of the parts, or all of those that do not have it."""
    ends = {
        "embedding.position": embedding.position(a),
        **numbers([*embedding.tensors(a), *embedding.head_tensors(a)]),
    }
    projection = multi_token_prediction.projection(a).numbers

    def of_part(component: Part) -> Values:
        return getattr(component, function, component.parameters)(a)

    return of_all_layers(a, ends, of_part, norm.parameters(a), projection)


def of_all_layers(
    a: Fields, ends: Values, of_part: Callable[[Part], Values], one_norm=0, projection=0
) -> Terms:
    """Combine the terms of the model with those of its layers for multi-token prediction.

    `projection`: the value of what such a layer begins with.
    """
    terms = of_model(a, ends, _of_parts(a, of_part), one_norm)
    if multi_token_prediction.is_absent(a):
        return terms
    ahead = multi_token_prediction.own_layers(a)
    in_layers = layer.in_layers(ahead, _of_parts(ahead, of_part), one_norm)
    return terms | multi_token_prediction.of_layers(a, in_layers, one_norm, projection)


def _of_parts(a: Fields, of_part: Callable[[Part], Values]) -> dict[str, Values]:
    return {name: of_part(component) for name, component in layer.parts(a).items()}


def of_model(a: Fields, ends: Values, of_parts: dict[str, Values], one_norm=0) -> Terms:
    """Combine the terms of all layers with those of both ends of the model.

    `of_parts`: the values of each part of a layer, by name; `ends`: those of embedding and head.
    """
    return around_layers(a, ends, one_norm) | layer.in_layers(a, of_parts, one_norm)


def flops_of(a: Fields, r: Run, passes: int, of_part: Callable[[Part], Values]) -> Terms:
    """Combine the FLOPs of the layers' parts with those of both ends, of one pass or of two."""
    ends = {name: passes * n for name, n in embedding_step.flops(a, r).items()}
    return of_model(a, ends, _of_parts(a, of_part))


def saved_by_layers(a: Fields, r: Run) -> Terms:
    """Return the bytes that layers save for backward; computed again, their inputs."""
    if r.recompute != "full":
        return layer_step.saved(a, r)
    inputs = {"layer": bytes_of(r.dtype) * tokens(of_states(r)) * a.d_model}
    return part("", inputs, a.n_layer)


def around_layers(a: Fields, ends: Values, one_norm) -> Terms:
    """Return the terms of embedding and head, and of the norms between them and the layers."""
    norms = {"embedding": a.embedding_norm * one_norm, "final": a.final_norm * one_norm}
    return part("", ends) | part("norm", norms)


def of_tensors(a: Fields, value: Callable[[Tensor], Any]) -> Terms:
    """Sum a value of each parameter tensor that gets a gradient, by component."""
    ends = parameter_tensors.sums([*embedding.tensors(a), *embedding.head_tensors(a)], value)
    one_norm, projection = (
        sum(parameter_tensors.sums(tensors, value).values())
        for tensors in (norm.tensors(a, ""), [multi_token_prediction.projection(a)])
    )

    def of_part(component: Part) -> Values:
        return parameter_tensors.sums(tensors_of(component, a), value)

    return of_all_layers(a, ends, of_part, one_norm, projection)


def all_tensors(a: Fields) -> list[Tensor]:
    """Return the parameter tensors of both ends and of each part, whatever its layers."""
    of_parts = [tensor for part in layer.parts(a).values() for tensor in tensors_of(part, a)]
    return [*embedding.tensors(a), *of_parts, *embedding.head_tensors(a)]


def in_shards(a: Fields, r: Run) -> Terms:
    """Count the numbers of a device's shards, with their padding."""
    return of_tensors(a, lambda tensor: shards.with_padding(r, tensor))


def in_own_rows(a: Fields, r: Run) -> Terms:
    """Count the numbers of a device's own rows."""
    return of_tensors(a, lambda tensor: shards.numbers(r, tensor))
