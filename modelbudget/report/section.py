"""What a section of the page is, and what all sections are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.report.chart_specs import Charts
from modelbudget.report.page_results import Results, SweepResult, ordered
from modelbudget.report.verdict import Verdict, verdicts
from modelbudget.sweeps.derive import named_architecture

FIRST, APPENDIX = 0, 100
"""The first place of the page, and that of the appendix."""


class Section(NamedTuple):
    """A section of the page: `sections/NAME.py`, its template, and its style and script if any.

    `place` is its position: sections from APPENDIX on are closed until a reader opens them. `id` is
    its anchor and `short` its entry in the table of contents. `contents` returns what the template
    shows, which may have another `id`, `short` or `place`: None if there is nothing to show, and a
    list for a section of each sweep. A section is left out of a page whose results lack a file of
    `needs`, and, with `of_all`, of that of named sweeps: it depends on none.
    """

    place: int
    id: str
    short: str
    contents: Callable[[Page], dict | list[dict] | None]
    needs: tuple[str, ...] = ()
    of_all: bool = False

    def shown(self, page: Page) -> list[dict]:
        """Return what the template shows, once for each section of the page."""
        contents = self.contents(page)
        shown = contents if isinstance(contents, list) else [contents] if contents else []
        return [{"place": self.place, "id": self.id, "short": self.short} | one for one in shown]


@dataclass(frozen=True)
class Page:
    """Results, and what sections share.

    `verdicts` are by sweep or other table, and `known` maps digests of published architectures to
    labels. `packed` has the data that scripts read, `acts` those of the acts by their `id`, and
    `scripts` the text of scripts besides those of files. `drawn` maps sweeps to the act that draws
    them.
    """

    results: Results
    catalogue: Catalogue
    calculator: dict | None
    sweeps: list[SweepResult]
    verdicts: dict[str, Verdict]
    known: dict[str, str]
    charts: Charts = field(default_factory=Charts)
    packed: dict[str, str] = field(default_factory=dict)
    acts: dict[str, dict | list] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    drawn: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, results: Results, catalogue: Catalogue, calculator: dict | None) -> Page:
        """Return the page of these results, without any section."""
        named = [base for base in catalogue.bases.values() if base.model is not None]
        # Models with the same architecture get the label of the first.
        known = {named_architecture(base).digest(): base.label for base in reversed(named)}
        sweeps, by_source = ordered(results.sweeps), {v.source: v for v in verdicts(results)}
        return cls(results, catalogue, calculator, sweeps, by_source, known)

    @property
    def is_of_all(self) -> bool:
        """Whether the page has the sections that depend on no sweep."""
        return self.calculator is not None

    @property
    def has_story(self) -> bool:
        """Whether a sweep names the model that opens the page; else its sweeps do."""
        return any(sweep.summary["headline"] for sweep in self.sweeps)

    def sweep(self, name: str) -> SweepResult | None:
        """Return a sweep of the page by its name."""
        return next((sweep for sweep in self.sweeps if sweep.name == name), None)
