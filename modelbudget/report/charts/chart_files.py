"""Charts as files: all specs of a sweep in one file, and each chart as Vega-Lite, SVG and PNG."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import vl_convert

from modelbudget.common.files import write

if TYPE_CHECKING:
    import altair as alt

PIXELS_PER_POINT = 2
FONT = "Liberation Sans"
"""The font of SVG and PNG, the same on every machine. The page uses its reader's system font."""

FONTS = {"FONTCONFIG_FILE": str(Path(__file__).with_name("fonts.conf"))}
"""Configuration of fontconfig, which vl-convert reads when a process draws its first picture.

It is set only while drawing: a browser that inherits it finds no font.
"""


def save(charts: dict[str, alt.TopLevelMixin], path: str | Path) -> None:
    """Write all charts to one JSON file: pairs of name and Vega-Lite spec, in order."""
    write(path, _json([(name, chart.to_dict()) for name, chart in charts.items()]))


def load(path: Path) -> dict[str, dict]:
    """Read the specs by name from a file that `save` has written."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


@patch.dict(os.environ, FONTS)
def draw(specs: dict[str, dict], folder: Path) -> None:
    """Write each spec under its name with the endings .vl.json, .svg and .png."""
    for name, spec in specs.items():
        svg = vl_convert.vegalite_to_svg(spec | {"config": spec.get("config", {}) | {"font": FONT}})
        (folder / f"{name}.vl.json").write_text(_json(spec), encoding="utf-8")
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
        png = vl_convert.svg_to_png(svg, scale=PIXELS_PER_POINT)
        (folder / f"{name}.png").write_bytes(png)


def _json(data) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
