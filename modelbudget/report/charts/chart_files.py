"""Specs of charts, and each chart as files: Vega-Lite, SVG and PNG."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import vl_convert

if TYPE_CHECKING:
    import altair as alt

PIXELS_PER_POINT = 2
FONT = "Liberation Sans"
"""The font of SVG and PNG, the same on every machine. The page uses its reader's system font."""

FONTS = {"FONTCONFIG_FILE": str(Path(__file__).with_name("fonts.conf"))}
"""Configuration of fontconfig, which vl-convert reads when a process draws its first picture.

It is set only while drawing: a browser that inherits it finds no font.
"""


def specs_of(charts: dict[str, alt.TopLevelMixin]) -> dict[str, dict]:
    """Return the Vega-Lite spec of each chart by name, as JSON has it."""
    return {
        name: json.loads(_json(chart.to_dict(validate=False))) for name, chart in charts.items()
    }


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
