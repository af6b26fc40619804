"""Where the budget of a sequence model goes: predicted by formulas, measured on torch models.

    >>> import modelbudget as mb
    >>> mb.model("palm-540b").parameters()
    >>> mb.model("config.json").memory(mb.RunConfig(batch=8, dtype="bfloat16")).totals()

These names are loaded when they are first used.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelbudget.api.measuring import measure as measure
    from modelbudget.api.model import Model as Model
    from modelbudget.api.model import model as model
    from modelbudget.api.results import results as results
    from modelbudget.api.results import sweep as sweep
    from modelbudget.api.vectors import vectors as vectors
    from modelbudget.architecture.run_config import RunConfig as RunConfig
    from modelbudget.common.errors import InputError as InputError

__version__ = "0.1.0"

# Nothing is printed unless a program asks for log records: failures are in the results.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_EXPORTS = {
    "InputError": "common.errors",
    "Model": "api.model",
    "RunConfig": "architecture.run_config",
    "measure": "api.measuring",
    "model": "api.model",
    "results": "api.results",
    "sweep": "api.results",
    "vectors": "api.vectors",
}
"""Name → module."""


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_EXPORTS, "__version__"])
