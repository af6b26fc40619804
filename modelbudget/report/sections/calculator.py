"""The calculator, whose formulas and models do not depend on sweeps."""

from modelbudget.report.section import Page, Section


def _contents(page: Page) -> list[dict]:
    calculator = page.static.calculator or {}
    page.packed.update(calculator=calculator["packed"], nodes=calculator["nodes"])
    return [{"id": "what-if", "short": "Your model"} | calculator]


SECTION = Section(60, _contents, of_all=True)
