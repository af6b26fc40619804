"""What every page has, whatever the sweeps: the explorer, and the script that draws charts."""

from functools import cache
from typing import NamedTuple

import vl_convert

from modelbudget.catalogue.models import Catalogue
from modelbudget.report.explorer import explorer_section


class Frame(NamedTuple):
    """`explorer` is what its template shows; `vega` is Vega and what embeds it, as one script."""

    explorer: dict
    vega: str


@cache  # seconds, and no page of a process has another
def frame(catalogue: Catalogue) -> Frame:
    """Made anew, from the formulas and the named models."""
    return Frame(explorer_section(catalogue), vl_convert.javascript_bundle())
