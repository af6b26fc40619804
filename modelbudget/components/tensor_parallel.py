"""A model as one of several devices computes it that divide it among them.

Each device has the same share of the heads, of the hidden channels of MLPs and of the vocabulary
(Shoeybi et al. 2019, §3), so that the formulas of a model hold of a device's share. Norms,
positions, biases of row-parallel matrices, and keys and values of a single head are on each device.
"""

from collections.abc import Iterator
from types import SimpleNamespace

from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.operations import ceil_div
from modelbudget.architecture.run_values import MASKS, is_divided
from modelbudget.architecture.terms import Term, Terms
from modelbudget.components import embedding, layer
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.layers.fields import BEFORE
from modelbudget.components.mixers import mixers

_GIVEN = "tensor_parallel = {tensor_parallel}"


class Share(SimpleNamespace):
    """The fields of an architecture, of what one device has of it."""


def share(a: Fields, r: Run) -> Fields:
    """Return the architecture as one device computes it: a share of what its parts divide.

    A single key–value head is on each device. A share is returned as it is.
    """
    if isinstance(a, Share) or not is_divided(r):
        return a
    divided = {name for one in layer.parts(a).values() for name in getattr(one, "DIVIDED", ())}
    sizes = {name: getattr(a, name) for name in divided} | {"n_vocab": embedding.rows(a)}
    shares = {name: ceil_div(size, r.tensor_parallel) for name, size in sizes.items()}
    return Share(**vars(a) | shares | {"vocab_multiple": 1})


def with_whole_embedding(a: Fields, r: Run, gradients: Terms) -> Terms:
    """Return the gradients of a share, where that of the token embedding is whole on each device.

    Torch has no rule for the gradient of rows of an embedding (`_embedding_ops.py`:
    `embedding_dense_backward_strategy`). Tied, its sum with the head's is divided.
    """
    name = "embedding.token"
    factor = 1 + (1 - a.tied) * (r.tensor_parallel - 1)
    return gradients | {name: Term(factor * gradients[name].each)}


def known_peak(a: Fields, r: Run):
    """1 where the peak of training of one of several devices has a formula, else 0.

    Optimizers without temporary tensors of their own divide copies of gradients that are whole.
    Without a norm before it, a part gathers the length of the residual stream itself.
    """
    gathers = r.sequence_parallel * int(a.norm_placement not in BEFORE)
    return int(r.optimizer == "adamw") * (1 - gathers)


def constraints() -> Iterator[Constraint]:
    """Yield the constraints under which devices can divide a decoder."""
    for field, parts in (("mixers", mixers()), ("mlps", feed_forward())):
        for name, one in parts.items():
            if not hasattr(one, "DIVIDED"):
                yield _known(f"'{name}' not in {field}", f"{name} in {field}")
    yield _known("d_emb == 0", "d_emb = {d_emb}")
    yield _known("qk_norm == 'none'", "qk_norm = {qk_norm}")
    yield _known(f"position not in {MASKS}", "position = {position}")
    yield _known("not sinks", "sinks = true")
    for name, whole in (("n_head", ""), ("n_kv_head", "n_kv_head == 1 or "), ("d_ff", "")):
        yield Constraint(
            f"{whole}{name} % tensor_parallel == 0",
            f"{name} = {{{name}:,}}: {_GIVEN} devices do not divide it",
            when="tensor_parallel > 1",
        )
    rows = "ceil(n_vocab / vocab_multiple) * vocab_multiple"
    yield Constraint(
        f"{rows} % tensor_parallel == 0",
        f"n_vocab = {{n_vocab:,}}: {_GIVEN} devices do not divide its {{{rows}:,}} rows; allowed: "
        "a vocab_multiple that they divide",
        when="tensor_parallel > 1",
    )


def _known(holds: str, given: str) -> Constraint:
    return Constraint(holds, f"{_GIVEN}: not known yet with {given}", when="tensor_parallel > 1")
