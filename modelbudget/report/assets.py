"""Parts of the page that do not depend on sweeps: the script for charts, and the calculator."""

from functools import cache
from typing import NamedTuple

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.report.calculator_columns import in_bytes
from modelbudget.report.payload import packed, packed_bytes
from modelbudget.report.vega import vega


class Assets(NamedTuple):
    """Vega as one script, and the context of the calculator's template.

    In the context, `packed` has the data of the calculator's script, and `nodes` the numbers of its
    graph. None: a page without it.
    """

    vega: str
    calculator: dict | None = None


@cache  # takes seconds, and is the same for all pages of a process
def assets(catalogue: Catalogue) -> Assets:
    """Compute both from the formulas and the published models."""
    return Assets(vega(), calculator(catalogue))


def calculator(catalogue: Catalogue) -> dict:
    """Return the context of the calculator's template."""
    from modelbudget.report.calculator_data import calculator_section  # not of all pages

    section = calculator_section(catalogue)
    data = section.pop("data")
    graph, nodes = in_bytes(data["graph"])
    return section | {"packed": packed(data | {"graph": graph}), "nodes": packed_bytes(nodes)}
