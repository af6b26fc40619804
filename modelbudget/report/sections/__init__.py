"""The sections of the page, one file each: the acts of the story, then the appendix.

A section is found by its presence. Beside `NAME.py` lie `NAME.html.j2`, and `NAME.css` and
`NAME.js` if it has a style or a script of its own.
"""

from modelbudget.common.discover import Modules
from modelbudget.report.section import Section


def sections() -> dict[str, Section]:
    """Return every section by the name of its files, in the order of the page."""
    by_name = {name: module.SECTION for name, module in Modules(__path__, __name__).items()}
    return dict(sorted(by_name.items(), key=lambda entry: entry[1].place))
