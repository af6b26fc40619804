"""A pass told node by node: what each operation allocates while it runs, and what is freed when it
has run. Live bytes are the running sum.
"""

Node = tuple
"""Bytes allocated while it runs, bytes freed when it has run."""


def watched(live, nodes: list[Node]) -> tuple[list, object]:
    """Live bytes while each node runs, and after all of them."""
    peaks = []
    for allocated, freed in nodes:
        peaks.append(live + allocated)
        live = live + allocated - freed
    return peaks, live


def change(nodes: list[Node]):
    """What the nodes leave behind, less what was there before."""
    return sum(allocated - freed for allocated, freed in nodes)


def times(switch, nodes: list[Node]) -> list[Node]:
    """The nodes where the switch is 1; none where it is 0."""
    return [(switch * allocated, switch * freed) for allocated, freed in nodes]


def added(gradient) -> list[Node]:
    """Two gradients of the same states are added up."""
    return [(gradient, 2 * gradient)]


def linear(of_matrix, of_bias, of_input, freed, saved, early) -> list[Node]:
    """The gradients of a linear layer's matrix, bias and input, from one of which `freed` bytes
    are freed, as is what was saved: with the node itself, but if that was computed again (`early`),
    before torch sums up the bias's gradient.
    """
    return [(of_matrix + of_input, early * saved), (of_bias, freed + (1 - early) * saved)]
