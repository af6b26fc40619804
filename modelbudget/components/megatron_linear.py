"""Products as Megatron-Core computes them: gradients of weights and gathered states.

Under which constraints `gradient_accumulation_fusion`, `gathered_states: again` and
`embedding_gradient: own_rows` are known: by programs (`operations/accumulated_linear.py`,
`operations/vocabulary_share.py`).
"""

from collections.abc import Iterator
from typing import NamedTuple

from modelbudget.architecture.constraint import Constraint
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.layers.layer_fields import BEFORE
from modelbudget.components.mixers import mixers


def constraints() -> Iterator[Constraint]:
    """Yield the constraints under which both settings have formulas and modules."""
    for field, parts in (("mixers", mixers()), ("mlps", feed_forward())):
        for name, component in parts.items():
            if not hasattr(component, "FUSES_GRADIENTS"):
                yield _FUSES.known(f"'{name}' not in {field}", f"{name} in {field}")
    yield _FUSES.known("d_emb == 0", "d_emb = {d_emb}")
    for holds, setting in (
        ("n_kv_head > 1", "n_kv_head = 1"),
        ("not tied", "tied = true"),
        ("not output_bias and not down_bias", "output_bias or down_bias"),
    ):
        divided = f"tensor_parallel == 1 or ({holds})"
        yield _FUSES.known(divided, f"tensor_parallel = {{tensor_parallel}}, {setting}")
    for holds, setting in (
        ("projections != 'separate'", "projections: separate"),
        ("not gated or gate_and_up == 'packed'", "gate_and_up: separate"),
        ("not attention_gate", "attention_gate = true"),
        (f"norm_placement in {BEFORE}", "norm_placement = {norm_placement}"),
        ("zero in (0, 1)", "zero: {zero}"),
    ):
        yield _GATHERS.known(holds, setting)
    yield _OWN_ROWS.known("zero in (0, 1)", "zero: {zero}")
    yield _OWN_ROWS.known("embedding_scale == 'none'", "embedding_scale: {embedding_scale}")


class _Setting(NamedTuple):
    """A setting as messages call it, the condition that it is on, and what it is without."""

    text: str
    when: str
    default: str

    def known(self, holds: str, setting: str) -> Constraint:
        message = f"{self.text}: not known yet with {setting}; allowed: {self.default}"
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
