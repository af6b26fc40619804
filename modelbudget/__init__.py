"""Where the budget of a sequence model goes: predicted by formulas, measured on torch models.

Usually imported as `mb`: `mb.model("palm-540b").parameters()`,
`mb.model("config.json").memory(mb.RunConfig(batch=8, dtype="bfloat16"))`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelbudget.api.model import Model, model
    from modelbudget.architecture.run_config import RunConfig
    from modelbudget.common.errors import InputError

__version__ = "0.1.0"
__all__ = ["InputError", "Model", "RunConfig", "model"]

_EXPORTS = {
    "InputError": "common.errors",
    "Model": "api.model",
    "RunConfig": "architecture.run_config",
    "model": "api.model",
}
"""The file of each exported name, which is loaded when the name is first used."""


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: importing the package alone loads nothing."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
