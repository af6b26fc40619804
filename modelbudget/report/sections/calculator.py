"""The calculator, whose formulas and models do not depend on sweeps."""

from modelbudget.report.section import Page, Section


def _contents(page: Page) -> dict:
    calculator = page.calculator or {}
    page.packed.update(calculator=calculator["packed"], nodes=calculator["nodes"])
    page.scripts.append(calculator["functions"])
    return calculator


SECTION = Section(60, "what-if", "Your model", _contents, of_all=True)
