"""Bytes that autograd saves for the backward pass, by component."""

from collections import Counter
from collections.abc import Sequence

from modelbudget.operations.activation_checkpoint import Promise
from modelbudget.operations.autograd import Node, readers_from
from modelbudget.operations.tape import Tensor


def saved_by_component(root: Node | None, parameters: Sequence[Tensor]) -> Counter[str]:
    """Return the bytes of storages that the graph of a result holds, without the parameters'.

    A storage belongs to the component that saved it first. Results that checkpoints keep are saved.
    """
    if root is None:
        return Counter()
    nodes = readers_from([root])
    calls = {x.call for node in nodes for x in node.saved or () if isinstance(x, Promise)}
    n_bytes: Counter[str] = Counter()
    seen = {parameter.storage for parameter in parameters}
    saved = [
        (node.component, x)
        for node in sorted({*nodes, *(call.inputs for call in calls)}, key=lambda node: node.number)
        for x in node.saved or ()
    ]
    saved += [(name, x) for call in calls for name, kept in call.kept.values() for x in kept]
    for component, x in saved:
        if isinstance(x, Tensor) and x.storage not in seen:
            seen.add(x.storage)
            n_bytes[component] += x.storage.n_bytes * x.storage.times
    return n_bytes
