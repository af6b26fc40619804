"""The script that draws charts in the page: what it needs of Vega, bundled."""

from functools import cache

import vl_convert

PARTS = {
    "vega-dataflow@6.1.0": "{ transforms }",
    "vega-transforms@5.1.0": "* as ofData",
    "vega-view-transforms@5.1.0": "* as ofMarks",
    "vega-encode@5.1.0": "* as ofAxes",
    "vega-parser@7.1.0": "{ parse }",
    "vega-view@6.1.0": "{ View }",
    "vega-interpreter@2.0.0": "{ expressionInterpreter }",
    "vega-tooltip@1.0.0": "{ Handler }",
}
"""Packages that vl-convert has, in its versions, and what the page takes of each.

Maps, trees, forces and Vega-Lite are not among them: half of the bytes. Charts are compiled before.
"""
_GLOBAL = """
Object.assign(transforms, ofData, ofMarks, ofAxes);
window.vega = { parse, View, expressionInterpreter, Handler };
"""


@cache  # the same for all pages of a process
def vega() -> str:
    """Return the script, whose one global name is `vega`."""
    address = "https://cdn.jsdelivr.net/npm/{}/+esm"  # the key of a package, which is not fetched
    imports = [f'import {what} from "{address.format(name)}";' for name, what in PARTS.items()]
    return vl_convert.javascript_bundle("\n".join(imports) + _GLOBAL)
