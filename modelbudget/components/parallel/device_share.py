"""The architecture of what one of several devices has that compute a model's parts together."""

from types import SimpleNamespace

from modelbudget.architecture.arithmetic import ceil_div, positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import has_part_of_experts, is_divided
from modelbudget.components import embedding, layer


class Share(SimpleNamespace):
    """The fields of an architecture, of what one device has of it.

    `has_whole_keys`: 1 where keys and values of the only head are on each device, else 0.
    `n_sharing_heads`: devices that divide the heads, which a norm of all heads gathers.
    `has_copied_keys`: 1 where there are several such heads, of which several devices have the same.
    `n_own_expert`: routed experts of a layer that the device has.
    """


def share(a: Fields, r: Run) -> Fields:
    """Return the architecture as one device computes it: a share of what its parts divide.

    A single key–value head is on each device, and so is the router. A share is returned as it is.
    """
    if isinstance(a, Share) or not (is_divided(r) or has_part_of_experts(r)):
        return a
    parts, n_device = layer.parts(a).values(), r.tensor_parallel
    shares = {"n_vocab": ceil_div(embedding.rows(a), n_device)}
    # All tokens are computed together, unless each device has a part of the length.
    n_of_all_tokens = n_device - r.sequence_parallel * (n_device - 1)
    for names, n in ("DIVIDED", n_device), ("DIVIDED_OF_ALL_TOKENS", n_of_all_tokens):
        divided = {name for part in parts for name in getattr(part, names, ())}
        shares |= {name: ceil_div(getattr(a, name), n) for name in divided}
    shares |= {
        "vocab_multiple": 1,
        "has_whole_keys": 1 - positive(a.n_kv_head - 1),
        "n_sharing_heads": n_device,
        "has_copied_keys": positive(a.n_kv_head - 1) * positive(r.tensor_parallel - a.n_kv_head),
        "n_own_expert": ceil_div(a.n_expert, r.expert_parallel),
    }
    return Share(**vars(a) | shares)
