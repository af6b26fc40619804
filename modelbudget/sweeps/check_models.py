"""Validation of all named models before a run starts."""

from pathlib import Path

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.errors import InputError
from modelbudget.sweeps.derive import named_architecture


def check_models(catalogue: Catalogue) -> None:
    """Raise InputError with every mistake in the fields of named models.

    Models that no sweep uses are checked too, since the report contains them. A mistake shared by
    several models of a file is reported once.
    """
    models: dict[tuple[Path | None, str], list[str]] = {}
    for base in catalogue.bases.values():
        for line in _mistakes(base) if base.model else ():
            models.setdefault((base.path, line), []).append(f"models.{base.name}")
    if models:
        raise InputError([_line(path, line, names) for (path, line), names in models.items()])


def _mistakes(base) -> list[str]:
    try:
        named_architecture(base)
    except ValueError as error:
        return str(error).splitlines()
    return []


def _line(path: Path | None, line: str, names: list[str]) -> str:
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return f"{path}: {names[0]}{more}: {line}"
