"""A chart as files: Vega-Lite for the report, SVG and PNG for everyone else."""

import json
from pathlib import Path

import altair as alt
import vl_convert

PIXELS_PER_POINT = 2


def save(chart: alt.TopLevelMixin, path: Path) -> None:
    """Write `path` with the endings .vl.json, .svg and .png."""
    spec = chart.to_dict()
    text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    path.with_suffix(".vl.json").write_text(text, encoding="utf-8")
    svg = vl_convert.vegalite_to_svg(spec)
    path.with_suffix(".svg").write_text(svg, encoding="utf-8")
    path.with_suffix(".png").write_bytes(vl_convert.svg_to_png(svg, scale=PIXELS_PER_POINT))


def load(folder: Path) -> dict[str, dict]:
    """The specs of a folder by the names of their charts, in the order in which they are read."""
    found = {
        path.name.removesuffix(".vl.json"): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.vl.json"))
    }
    return dict(sorted(found.items(), key=lambda item: item[1]["usermeta"]["place"]))
