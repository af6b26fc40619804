"""Products as Megatron-Core computes them: gradients of weights and gathered states.

Formulas of `gradient_accumulation_fusion` and `gathered_states: again`; the timeline of one product
is `product_backward` (`memory/timeline.py`).
"""

from collections.abc import Iterator
from typing import NamedTuple

from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import bytes_of, fuses_gradients
from modelbudget.components import embedding, layer
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.layers.layer_fields import BEFORE
from modelbudget.components.mixers import mixers
from modelbudget.components.weight_formats import Matrix


def held(a: Fields, r: Run, has_head=1):
    """Bytes that stay from step to step: tensors without values, and the buffer of gathered states.

    Autograd gets these tensors in place of the gradients of weights: one for each shape
    (Transformer Engine 2.11, pytorch/module/base.py, `get_dummy_wgrad`).
    """
    head = Matrix("head", a.d_model, embedding.rows(a), has_head)
    matrices = [*layer.products(a, r), head]
    numbers = sum(
        one.n * one.d_in * one.d_out * _is_first(one, matrices[:i])
        for i, one in enumerate(matrices)
    )
    without_values = fuses_gradients(r) * bytes_of(r.dtype) * numbers
    return without_values + has_head * embedding.gathered_buffer(a, r)


def _is_first(one: Matrix, before: list[Matrix]):
    """1 where no matrix before has the same shape."""
    found = 1
    for other in before:
        same = (1 - _differ(one.d_out, other.d_out)) * (1 - _differ(one.d_in, other.d_in))
        found = found * (1 - other.n * same)
    return found


def _differ(x, y):
    return positive(x - y) + positive(y - x)


def constraints() -> Iterator[Constraint]:
    """Yield the constraints under which both settings have formulas and modules."""
    for field, parts in (("mixers", mixers()), ("mlps", feed_forward())):
        for name, one in parts.items():
            if not hasattr(one, "FUSES_GRADIENTS"):
                yield _FUSES.known(f"'{name}' not in {field}", f"{name} in {field}")
    yield _FUSES.known("d_emb == 0", "d_emb = {d_emb}")
    for holds, given in (
        ("n_kv_head > 1", "n_kv_head = 1"),
        ("not tied", "tied = true"),
        ("not output_bias and not down_bias", "output_bias or down_bias"),
    ):
        divided = f"tensor_parallel == 1 or ({holds})"
        yield _FUSES.known(divided, f"tensor_parallel = {{tensor_parallel}}, {given}")
    for holds, given in (
        ("projections != 'separate'", "projections: separate"),
        ("not gated or gate_and_up == 'packed'", "gate_and_up: separate"),
        ("not attention_gate", "attention_gate = true"),
        (f"norm_placement in {BEFORE}", "norm_placement = {norm_placement}"),
        ("zero in (0, 1)", "zero: {zero}"),
    ):
        yield _GATHERS.known(holds, given)
    yield _OWN_ROWS.known("zero in (0, 1)", "zero: {zero}")
    yield _OWN_ROWS.known("embedding_scale == 'none'", "embedding_scale: {embedding_scale}")


class _Setting(NamedTuple):
    """A setting as messages call it, the condition that it is on, and what it is without."""

    text: str
    when: str
    default: str

    def known(self, holds: str, given: str) -> Constraint:
        message = f"{self.text}: not known yet with {given}; allowed: {self.default}"
        return Constraint(holds, message, when=self.when)


_FUSES = _Setting(
    "gradient_accumulation_fusion = true",
    "gradient_accumulation_fusion and gradient_casts == 'accumulated'",
    "gradient_accumulation_fusion: false",
)
_OWN_ROWS = _Setting(
    "embedding_gradient = 'own_rows'",
    "embedding_gradient == 'own_rows' and tensor_parallel > 1",
    "embedding_gradient: whole",
)
_GATHERS = _Setting(
    "gathered_states = 'again'",
    "gathered_states == 'again' and sequence_parallel",
    "gathered_states: saved",
)
