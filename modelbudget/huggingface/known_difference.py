"""Differences between `transformers` classes and our models that are known by number and reason.

`left_out` of the files of `configs/huggingface/model_types/` has them.
"""

from typing import NamedTuple

from modelbudget.architecture.base import Architecture
from modelbudget.common.expressions import Expression
from modelbudget.huggingface.classes import translations


class KnownDifference(NamedTuple):
    """Parameters that a class has in addition to ours (if negative, fewer), and why."""

    parameters: int
    reason: str

    @property
    def text(self) -> str:
        """The number and the reason in one line."""
        return f"{self.parameters:+,}: {self.reason}"


def known_difference(class_name: str | None, a: Architecture) -> KnownDifference | None:
    """Return how a class is known to differ from its architecture; None if it does not."""
    left_out = translations()[class_name].left_out if class_name else None
    if left_out is None:
        return None
    parameters = int(Expression(left_out.parameters)(a.model_dump()))
    return KnownDifference(-parameters, left_out.reason) if parameters else None
