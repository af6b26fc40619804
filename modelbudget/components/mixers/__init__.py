"""What mixes the positions of a layer: one mixer a file, named as in the pattern `mixers:`."""

from functools import cache

from modelbudget.common.discover import Modules
from modelbudget.components.contract import Part


@cache
def mixers() -> dict[str, Part]:
    """Every mixer by its name."""
    return Modules(__path__, __name__)
