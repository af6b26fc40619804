"""Parts of the page that do not depend on sweeps: the calculator, and the script for charts."""

from functools import cache
from typing import NamedTuple

import vl_convert

from modelbudget.catalogue.models import Catalogue
from modelbudget.report.calculator import calculator_section


class Assets(NamedTuple):
    """The context of the calculator's template, and Vega with vega-embed as one script."""

    calculator: dict
    vega: str


@cache  # takes seconds, and is the same for all pages of a process
def assets(catalogue: Catalogue) -> Assets:
    """Compute both from the formulas and the published models."""
    # The stub requires a snippet, which the function does not.
    script = vl_convert.javascript_bundle()  # pyright: ignore[reportCallIssue]
    return Assets(calculator_section(catalogue), script)
