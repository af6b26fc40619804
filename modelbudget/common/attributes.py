"""Functions with attributes."""

from collections.abc import Callable
from typing import Any


def with_attributes(function: Callable, **attributes: Any) -> Any:
    """Return the function, which has these attributes from now on."""
    vars(function).update(attributes)
    return function
