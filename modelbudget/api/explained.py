"""Each number of a file, explained: exact, bounded, or unexplained by so many bytes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from modelbudget.api.find import CATALOGUE
from modelbudget.api.frames import Frames
from modelbudget.api.model import Model, model
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import (
    all_models,
    as_spelled,
    find_by_name,
    without_owner,
)
from modelbudget.catalogue.quantised_copies import copy_of, stem
from modelbudget.common.byte_sizes import UNITS

Verdict = Literal["exact", "bounded", "unexplained", "read", "asked"]


class Line(NamedTuple):
    """One number of a file: as printed, the terms that explain it, and what is left.

    read: printed by a tool about itself, and no formula is about it. asked: a formula is about it,
    and needs what the file does not say. `n_bytes`: of the number, if it has a unit of bytes;
    `unexplained`: bytes of it that no term is about, or parameters.
    """

    name: str
    printed: str
    explained: str
    verdict: Verdict
    n_bytes: int = 0
    unexplained: int = 0
    place: int = 0

    @property
    def in_words(self) -> str:
        """The verdict, with the bytes or parameters that are left."""
        if self.verdict == "unexplained" and self.unexplained:
            unit = "bytes" if self.n_bytes else "parameters"
            return f"unexplained, {self.unexplained:,} {unit}"
        return self.verdict


@dataclass(frozen=True)
class Explained(Frames):
    """All numbers of a file; `asked`: what it does not say, each with how to say it.

    `next_step`: a command that answers what a reader of the file asks next.
    """

    path: Path
    title: str
    lines: tuple[Line, ...]
    asked: tuple[str, ...] = field(default=())
    next_step: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "file": self.path.name,
            "about": self.title,
            "lines": self.rows(),
            "asked": list(self.asked),
            "next_step": self.next_step,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each number."""
        return [line._asdict() for line in self.lines]

    def __repr__(self) -> str:
        return f"<{self.path.name}: {self.title}>"


def named_model(text: str) -> str | None:
    """Return the model of the catalogue whose name a repository has, if one has just this.

    One with other parts than its language model keeps the name that says so, and so does a copy in
    another format.
    """
    of_name = find_by_name(CATALOGUE, text) or copy_of(CATALOGUE, text)
    is_known = bool(of_name and of_name.model)
    if of_name and is_known and (of_name.left_out or "weights" in of_name.fields):
        return text
    whole = without_owner(text.rstrip("/"))
    name = stem(whole).lower()
    names = {as_spelled(base.name): base.name for base in all_models(CATALOGUE)}
    if name_of_model := names.get(as_spelled(name)):
        return name_of_model
    named = ((same, find_by_name(CATALOGUE, same)) for same in (name, whole))
    similar = (same for same, base in named if base and base.model)
    return next(similar, text if is_known else None)


def model_of(name: str | None, printed: str | None, settings: dict[str, Any]) -> Model | None:
    """Return the model that a user names, or that a file does; None if neither is known."""
    chosen = name or (printed and named_model(printed))
    if not chosen:
        return None
    sizes = {key: value for key, value in settings.items() if key not in RunConfig.model_fields}
    return model(chosen, **sizes)


def gib(n_bytes: float) -> str:
    """Return bytes as GiB or MiB, with four digits."""
    for unit in ("GiB", "MiB", "KiB"):
        if abs(n_bytes) >= (size := UNITS[unit]):
            digits = ".4g" if n_bytes < 10_000 * size else ".0f"
            return f"{n_bytes / size:,{digits}} {unit}"
    return f"{n_bytes:,.0f} bytes"


def judged(
    name: str, n_bytes: int, terms: list[tuple[str, int]], printed: str = "", rounding: int = 0,
    place: int = 0,
) -> Line:  # fmt: skip
    """Return the line of a number in bytes, and of the terms that a formula says it has."""
    printed, whole = printed or gib(n_bytes), sum(n for _, n in terms)
    text = " + ".join(f"{gib(n)} {what}" for what, n in terms)
    if abs(n_bytes - whole) <= rounding:
        return Line(name, printed, text, "exact", n_bytes, 0, place)
    times = next((k for k in range(2, 9) if abs(n_bytes - k * whole) <= rounding), None)
    if whole and times:
        text = f"{times} × {text}" if len(terms) == 1 else f"{times} × ({text})"
        return Line(name, printed, text, "unexplained", n_bytes, n_bytes - whole, place)
    off, sign = abs(n_bytes - whole), "+" if n_bytes > whole else "−"
    text = f"{text} {sign} {gib(off)} unexplained"
    return Line(name, printed, text, "unexplained", n_bytes, min(off, n_bytes), place)
