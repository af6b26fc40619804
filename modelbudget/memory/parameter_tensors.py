"""Parameter tensors in the order of modules: what an optimizer updates one after another."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import is_nothing
from modelbudget.architecture.layer_groups import LayerGroup


class Tensor(NamedTuple):
    """A parameter tensor that gets a gradient.

    Its component, its number of elements, and 1 where the model has it (else 0). `shape`: None if
    no formula needs it. `is_routed`: 1 where devices divide it with the routed experts.
    """

    name: str
    numbers: Any
    is_there: Any = 1
    shape: tuple | None = None
    is_routed: int = 0


def is_absent(tensor: Tensor) -> bool:
    """Whether no model of these words has it."""
    return is_nothing(tensor.is_there)


def have_shapes(tensors: list[Tensor]) -> bool:
    """Whether the shapes of all tensors that the model has are known."""
    return all(tensor.shape for tensor in tensors if not is_absent(tensor))


def matrix(name: str, rows, columns, is_there=1) -> Tensor:
    """Return a tensor of so many rows."""
    return Tensor(name, rows * columns, is_there, (rows, columns))


def vector(name: str, rows, is_there=1) -> Tensor:
    return Tensor(name, rows, is_there, (rows,))


def linear_tensors(name: str, d_in, d_out, bias) -> list[Tensor]:
    """Return the weight and the bias of a linear layer."""
    return [matrix(name, d_out, d_in), vector(name, d_out, bias)]


def numbers(tensors: list[Tensor]) -> dict[str, Any]:
    """Count the numbers of each component, of those that some model of these words has."""
    present = [tensor for tensor in tensors if not is_absent(tensor)]
    return sums(present, lambda tensor: tensor.numbers)


def counted(tensors: Callable[..., list[Tensor]]) -> Callable[..., dict[str, Any]]:
    """Return the function that counts the parameters of a part, of the one that lists tensors."""

    def parameters(*arguments) -> dict[str, Any]:
        return numbers(tensors(*arguments))

    parameters.__doc__ = tensors.__doc__
    return parameters


def sums(tensors: list[Tensor], value: Callable[[Tensor], Any]) -> dict[str, Any]:
    """Sum a value of each parameter tensor, by component."""
    by_name: dict[str, Any] = {}
    for tensor in tensors:
        by_name[tensor.name] = by_name.get(tensor.name, 0) + tensor.is_there * value(tensor)
    return by_name


class Neighbours(NamedTuple):
    """The numbers of a tensor and of the one before it, and 1 where the model has both."""

    numbers: Any
    before: Any
    is_there: Any = 1


def neighbours(tensors: list[Tensor], is_there=1) -> list[Neighbours]:
    """Each tensor and the one before it; 0 numbers before the first."""
    pairs, before = [], 0
    for tensor in tensors:
        exists = tensor.is_there
        pairs.append(Neighbours(tensor.numbers, before, is_there * exists))
        before = exists * tensor.numbers + (1 - exists) * before
    return pairs


def neighbours_of_model(
    embedding: list[Tensor],
    layers: list[tuple[LayerGroup, list[Tensor]]],
    head: list[Tensor],
    n_layer,
) -> list[Neighbours]:
    """Those of a whole model, with one layer of each group for all."""
    pairs = [*neighbours(embedding), *neighbours(head)]
    for group, tensors in layers:
        first, last = first_of(tensors), last_of(tensors)
        pairs += neighbours(tensors, group.is_there)
        pairs.append(Neighbours(first, last_of(embedding), group.is_there * group.at(0)))
        pairs.append(Neighbours(first_of(head), last, group.is_there * group.at(n_layer - 1)))
        pairs += _followed(group, last, layers)
    return pairs


def _followed(group: LayerGroup, last, layers) -> Iterator[Neighbours]:
    """Yield the last tensor of a layer with the first of the next, for each group of the latter."""
    for next_group, tensors in layers:
        for index in (group.first, group.last):
            is_there = group.is_there * next_group.is_there * next_group.at(index + 1)
            yield Neighbours(first_of(tensors), last, is_there)


def first_of(tensors: list[Tensor]):
    """Return the number of elements of the first tensor that the model has."""
    numbers = 0
    for tensor in reversed(tensors):
        is_there = tensor.is_there
        numbers = is_there * tensor.numbers + (1 - is_there) * numbers
    return numbers


def last_of(tensors: list[Tensor]):
    """Return the number of elements of the last tensor that the model has."""
    return first_of(tensors[::-1])
