"""Parts of the page that do not depend on sweeps: the script for charts, and the calculator."""

import json
import zlib
from functools import cache

import numpy as np
import vl_convert

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.report.calculator_columns import in_bytes


def calculator(catalogue: Catalogue) -> dict:
    """Return the context of the calculator's template, from the formulas and published models.

    In it, `packed` has the data of the calculator's script, and `nodes` the numbers of its graph.
    """
    from modelbudget.report.calculator_data import calculator_section  # not of all pages

    section = calculator_section(catalogue)
    data = section.pop("data")
    graph, nodes = in_bytes(data["graph"])
    return section | {"packed": packed(data | {"graph": graph}), "nodes": packed_bytes(nodes)}


_SAFE = {code: code + 256 for code in map(ord, "\0\r<")}
"""Characters that HTML would read as others, and what stands for them in the page."""


def packed(data) -> str:
    """Return the data as compressed JSON. Equal data give equal text."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return packed_bytes(text.encode())


def packed_bytes(content: bytes) -> str:
    """Return compressed bytes as text, seven bits a character.

    Base85 would take 7 % more. The characters of a script are not parsed: `<` alone could end it.
    """
    bits = np.unpackbits(np.frombuffer(zlib.compress(content, 9), np.uint8))
    bits = np.pad(bits, (0, -bits.size % 7)).reshape(-1, 7)
    return (np.packbits(bits, axis=1) >> 1).tobytes().decode("ascii").translate(_SAFE)


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
