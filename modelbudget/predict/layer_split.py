"""How llama.cpp divides the layers of a model among devices (`--split-mode layer`).

The head counts as one layer more, behind the others. Of devices with as much free memory, layer `i`
of `n` is on device `i * devices // n` (`load_tensors` in src/llama-model.cpp).
"""

from itertools import pairwise
from typing import Any, NamedTuple

from modelbudget.architecture.layer_pattern import layers_from


class LayerShare(NamedTuple):
    """The layers that a device has, by their numbers, and whether it has the head."""

    layers: range
    has_head: bool

    @property
    def words(self) -> str:
        """What a device has."""
        return f"{len(self.layers):,} layers{' and the head' if self.has_head else ''}"

    def part_of(self, a: Any) -> Any:
        """Return the architecture of these layers of a decoder."""
        return layers_from(a, self.layers.start, len(self.layers))


def layer_shares(n_layer: int, n_device: int, n_on_host: int = 0) -> list[LayerShare]:
    """Return the layers of each device; the first `n_on_host` are on the host."""
    n = n_layer + 1 - n_on_host
    starts = [n_on_host + -(-n * k // n_device) for k in range(n_device + 1)]
    return [
        LayerShare(range(start, min(end, n_layer)), start <= n_layer < end)
        for start, end in pairwise(starts)
    ]
