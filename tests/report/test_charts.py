"""Charts: chosen by axes, drawn from any table, and saying in words what they show."""

import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
from functools import partial

import numpy as np
import polars as pl
import pytest
import vl_convert
from helpers.project import ROOT
from helpers.results import charts_of_sweep

from modelbudget.common.number_format import percent, times
from modelbudget.components.groups import GROUPS, MEMORY, group_of
from modelbudget.report.charts import area_chart
from modelbudget.report.charts.bar_chart import largest_part
from modelbudget.report.charts.chart_files import draw, specs_of
from modelbudget.report.charts.chart_tables import budget, evenly_spaced
from modelbudget.report.charts.component_charts import charts
from modelbudget.report.charts.palette import PALETTE
from modelbudget.sweeps.derive import named_architecture

MOST_ROWS = 5_000


def comparison(points: list[tuple[str, dict, dict]]) -> pl.DataFrame:
    """A comparison of points given as label, swept fields, and parameters by component."""
    rows = [
        {"point": f"{number:06}", "label": label, **fields, "component": component,
         "quantity": "parameters", "predicted": value, "measured": value, "agrees": True,
         "method": "cpu"}
        for number, (label, fields, components) in enumerate(points, start=1)
        for component, value in components.items()
    ]  # fmt: skip
    return pl.from_dicts(rows, infer_schema_length=None)


def grid(**axes) -> tuple[dict, pl.DataFrame]:
    """Models whose embedding is 100 and whose MLP grows with every size of the grid."""
    points = []
    for values in itertools.product(*axes.values()):
        fields = dict(zip(axes, values, strict=True))
        sizes = [v for v in values if isinstance(v, int)]
        parts = {"embedding.token": 100, "layer.mlp.up": 10 * int(np.prod(sizes, dtype=object))}
        if fields.get("tied") is False:
            parts["head"] = 100
        label = ", ".join(f"{name} = {value}" for name, value in fields.items())
        points.append((label, fields, parts))
    return axes, comparison(points)


def one_by_one(n: int) -> tuple[dict, pl.DataFrame]:
    return {}, comparison(
        [(f"model {i}", {}, {"embedding.token": 30, "head": i}) for i in range(n)]
    )


SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
SWEEPS = {
    "one long axis": (partial(grid, d_model=SIZES), {"shares", "total"}),
    "one short axis": (partial(grid, n_kv_head=[1, 2, 4]), {"shares", "total"}),
    "one value": (partial(grid, d_model=[64]), {"models"}),
    "a switch": (partial(grid, tied=[True, False]), {"models"}),
    "words": (partial(grid, norm=["layernorm", "rmsnorm"], tied=[True, False]), {"models"}),
    "an axis and a switch": (partial(grid, d_model=SIZES, tied=[True, False]), {"shares", "total"}),
    "an axis and few sizes": (partial(grid, d_model=SIZES, n_vocab=[10, 20]), {"shares", "total"}),
    "two axes": (partial(grid, d_model=SIZES, n_layer=SIZES), {"shares", "total"}),
    "two axes and a switch": (
        partial(grid, d_model=SIZES, n_vocab=SIZES, tied=[True, False]),
        {"shares", "total"},
    ),
    "five axes": (
        partial(
            grid, d_model=SIZES, n_layer=SIZES, n_head=[1, 2, 3, 4], tied=[True, False],
            n_ctx=[1, 2],
        ),
        {"shares", "total"},
    ),
    "a size from zero": (partial(grid, n_dense=[0, *SIZES]), {"shares", "total"}),
    "one point": (partial(one_by_one, 1), {"models"}),
    "points": (partial(one_by_one, 9), {"models"}),
    "very many points": (partial(one_by_one, 3_000), {"models"}),
    "a very long axis": (partial(grid, d_model=list(range(1, 20_001))), {"shares", "total"}),
    "two long axes": (
        partial(grid, d_model=list(range(1, 151)), n_layer=list(range(1, 151))),
        {"shares", "total"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SWEEPS)
def test_axes_choose_charts_that_draw(name):
    make, expected = SWEEPS[name]
    axes, table = make()
    found = charts(axes, table)
    assert set(found) == expected
    for chart in found.values():
        spec = chart.to_dict()  # Altair validates against Vega-Lite's schema
        assert sum(map(len, spec["datasets"].values())) <= MOST_ROWS
        assert any(character.isdigit() for character in spec["description"])
        svg = vl_convert.vegalite_to_svg(spec)
        assert svg.count("<path") > 2
        assert "NaN" not in svg


def test_grid_and_points_of_one_sweep_are_drawn_apart():
    axes, table = grid(d_model=SIZES)
    extra = table.filter(pl.col("point") == "000001")
    extra = extra.with_columns(point=pl.lit("000011"), label=pl.lit("one more"))
    found = charts(axes, pl.concat([table, extra]))
    assert list(found) == ["shares", "total", "models"]
    assert "one more" in json.dumps(found["models"].to_dict())


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.00042, "1.0004 ×"), (0.99996, "0.99996 ×"), (1.004, "1.004 ×"), (1.176, "1.18 ×"),
     (1055251.5, "1,060,000 ×")],
)  # fmt: skip
def test_what_is_not_equal_is_not_1_times_as_large(ratio, text):
    """Only here: ratios that three digits would make 1."""
    assert times(ratio) == text


def test_nothing_measured_gives_no_charts():
    axes, table = grid(d_model=SIZES)
    nothing = table.with_columns(measured=pl.lit(None, pl.Int64))
    assert charts(axes, nothing) == {}


def test_missing_predictions_do_not_matter():
    axes, table = grid(d_model=SIZES)
    unpredicted = table.with_columns(predicted=pl.lit(None, pl.Int64))
    assert charts(axes, unpredicted)["shares"].to_dict() == charts(axes, table)["shares"].to_dict()


def test_findings_state_numbers():
    found = charts(*grid(d_model=[10, 90, 100, 190, 290, 390, 490, 590, 990]))
    assert "d_model = 10 to 990" in found["shares"].description
    assert "token embedding falls from 50.0 % to 1.0 %" in found["shares"].description
    assert "MLP rises from 50.0 % to 99.0 %" in found["shares"].description
    assert (
        "From d_model = 10 to 990, the total grows from 200 to 10K parameters, 50 ×"
        in found["total"].description
    )


def test_models_with_two_largest_parts_are_counted_once():
    parts = [(50, 50), (50, 50), (30, 70), (70, 30), (20, 80)]
    points = [
        (f"model {i}", {}, {"embedding.token": 5 * embedding, "layer.mlp.up": 5 * mlp})
        for i, (embedding, mlp) in enumerate(parts)
    ]
    finding = largest_part(budget(comparison(points)), "parameters")
    assert "is MLP in 4 of 5 models: 50.0 % " in finding
    assert "In the others: token embedding (1)." in finding


def test_the_finding_is_about_the_panel_that_changes_most():
    def panel(*shares):
        rows = [(d, g, x) for d, s in shares for g, x in (("MLP", s), ("head", 1 - s))]
        return pl.DataFrame(rows, ["d_model", "group", "share"], orient="row")

    panels = {"tied": panel((8, 0.2), (64, 0.7)), "not tied": panel((8, 0.5), (64, 0.5))}
    found = area_chart._largest_changes(panels, "d_model")
    assert "the share of MLP rises from 20.0 % to 70.0 %" in found
    assert "(tied)" in found


def test_equal_curves_are_drawn_once():
    axes, table = grid(d_model=SIZES, norm=["layernorm", "rmsnorm", "none"])
    shares, total = (charts(axes, table)[name].to_dict() for name in ("shares", "total"))
    (panel,) = shares["concat"]
    assert panel["title"]["text"] == "norm = layernorm or rmsnorm or none"
    assert "norm = layernorm or rmsnorm or none" in total["description"]
    other = pl.col("norm") == "none"
    changed = table.with_columns(measured=pl.col("measured") + other.cast(pl.Int64))
    titles = [one["title"]["text"] for one in charts(axes, changed)["shares"].to_dict()["concat"]]
    assert titles == ["norm = layernorm or rmsnorm", "norm = none"]


def test_each_of_many_lines_has_its_own_shade():
    """Only here: of more than two lines, none was darker than a third."""
    svg = vl_convert.vegalite_to_svg(charts(*grid(d_model=SIZES, n_layer=SIZES))["total"].to_dict())
    shades = {float(shade) for shade in re.findall(r'opacity="([\d.]+)"', svg)}
    assert sum(0.3 < shade < 1 for shade in shades) >= len(SIZES) - 3


def test_tied_beside_untied():
    axes, table = grid(d_model=SIZES, n_vocab=SIZES, tied=[True, False])
    panels = charts(axes, table)["total"].to_dict()["concat"]
    assert [panel["title"]["text"] for panel in panels] == ["tied", "not tied"]


def test_budget_adds_up():
    _, table = grid(d_model=SIZES, tied=[True, False])
    rows = budget(table)
    sums = rows.group_by("point").agg(
        pl.col("share").sum(), pl.col("value").sum(), pl.col("total").first()
    )
    assert (sums["share"] - 1).abs().max() < 1e-12
    assert sums["value"].to_list() == sums["total"].to_list()
    assert rows["value"].sum() == table["measured"].sum()


@pytest.mark.parametrize(
    ("component", "group"),
    [
        ("embedding.token", "token embedding"),
        ("embedding.position", "positions"),
        ("head", "head"),
        ("layer.attention.key", "attention"),
        ("decoder.layer.cross.key", "cross-attention"),
        ("encoder.layer.mlp.up", "MLP"),
        ("layer.moe.shared.up", "experts"),
        ("layer.moe.router", "router"),
        ("layer.norm.attention", "norms"),
        ("layer.attention.query_norm", "norms"),
        ("layer.norm.channel_rnn", "norms"),
        ("decoder.layer.norm.cross", "norms"),
        ("layer.channel_rnn.hidden", "recurrence"),
        ("layer.hidden", "recurrence"),
        ("layer.time.key", "recurrence"),
        ("layer.channel.key", "MLP"),
        ("layer.mixer.input", "state space"),
        ("layer.mla.kv_up", "attention"),
        ("embedding.projection", "token embedding"),
        ("head.projection", "head"),
        ("pooler", "head"),
        ("something.new", "other"),
    ],
)
def test_components_find_their_group(component, group):
    assert group_of(component) == group


def test_no_published_model_has_parts_without_a_group(catalogue):
    records = [named_architecture(base) for base in catalogue.bases.values() if base.model]
    components = {
        name for record in records for name, term in record.parameters(record).items() if term.total
    }
    assert [name for name in components if group_of(name) == "other"] == []


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (1, "100 %"), (0.5, "50.0 %"), (0.00868, "0.87 %"), (1e-9, "< 0.01 %"),
     (0.99951, "99.95 %"), (1 - 1e-9, "> 99.99 %")],
)  # fmt: skip
def test_percent(share, text):
    assert percent(share) == text


def test_spread_keeps_both_ends():
    assert evenly_spaced(range(1000), 4) == [0, 333, 666, 999]
    assert evenly_spaced([1, 2], 4) == [1, 2]


def test_allocator_overhead_is_relative_to_requested_bytes():
    """The largest phase of each: 1,000 requested, 1,100 in blocks, 1,500 in segments."""
    peaks = {
        "peak_requested_bytes": (1000, 900),
        "peak_allocated_bytes": (1050, 1100),
        "peak_reserved_bytes": (1200, 1500),
    }
    rows = [
        {"point": f"{i:06}", "label": f"model {i}", "method": "meta", "quantity": quantity,
         "component": phase, "predicted": value + i * more, "percent": 0.0,
         "measured": value if quantity == "peak_requested_bytes" else None,
         "prediction": "formula" if quantity == "peak_requested_bytes" else "simulated"}
        for i in range(2)
        for quantity, values in peaks.items()
        for more in [100 if quantity == "peak_reserved_bytes" else 0]
        for phase, value in zip(("first", "second"), values, strict=True)
    ]  # fmt: skip
    chart = charts_of_sweep({}, pl.from_dicts(rows), [])["allocator-overhead"].to_dict()
    assert "reserves 50.0 % (model 0) to 60.0 % (model 1) more" in chart["description"]
    assert "Rounding to blocks adds at most 10.0 %" in chart["description"]
    assert "<path" in vl_convert.vegalite_to_svg(chart)
    without = [row for row in rows if row["quantity"] != "peak_reserved_bytes"]
    assert "allocator-overhead" not in charts_of_sweep({}, pl.from_dicts(without), [])


def test_files_hold_one_chart_three_times(tmp_path):
    specs = specs_of(charts(*grid(d_model=SIZES)))
    assert list(specs) == ["shares", "total"]
    draw(specs, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "shares.png", "shares.svg", "shares.vl.json", "total.png", "total.svg", "total.vl.json",
    ]  # fmt: skip
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "shares.svg").read_text().startswith("<svg")


# Machado, Oliveira and Fernandes 2009, severity 1: what each kind of colour-blindness sees.
BLINDNESS = {
    "none": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
               [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def oklab(colour: str, seen: list) -> np.ndarray:
    """Ottosson 2020: a space where distance is what the eye takes for difference."""
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    cones = np.array(
        [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
         [0.0883024619, 0.2817188376, 0.6299787005]]
    ) @ np.clip(np.array(seen) @ linear, 0, 1)  # fmt: skip
    return np.array(
        [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
         [0.0259040371, 0.7827717662, -0.8086757660]]
    ) @ np.cbrt(cones)  # fmt: skip


@pytest.fixture(scope="module")
def neighbours(catalogue) -> set[tuple[str, str]]:
    """Groups that touch in the stack of some model of the catalogue."""
    found = set()
    for base in catalogue.bases.values():
        if base.model:
            record = named_architecture(base)
            terms = record.parameters(record)
            held = {group_of(name) for name, term in terms.items() if term.total}
            found |= set(itertools.pairwise(group for group in GROUPS if group in held))
    return found


@pytest.mark.parametrize("paper", ["light", "dark"])
@pytest.mark.parametrize("kind", BLINDNESS)
def test_colours_are_told_apart(kind, paper, neighbours):
    """Components from components, and what lives in memory from each other."""
    seen = {title: oklab(getattr(g, paper), BLINDNESS[kind]) for title, g in GROUPS.items()}
    touching = neighbours | set(itertools.pairwise(MEMORY))
    near = [
        (a, b)
        for a, b in itertools.combinations(seen, 2)
        if (a in MEMORY) == (b in MEMORY)
        and np.linalg.norm(seen[a] - seen[b]) < (0.09 if (a, b) in touching else 0.055)
    ]
    assert near == []


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("paper", ["light", "dark"])
def test_no_colour_means_a_component_and_memory(paper):
    """Red was attention and then activations; gold was the head and then logits."""
    seen = {title: oklab(getattr(g, paper), BLINDNESS["none"]) for title, g in GROUPS.items()}
    near = [
        (a, b)
        for a, b in itertools.product(MEMORY, GROUPS.keys() - MEMORY)
        if np.linalg.norm(seen[a] - seen[b]) < 0.045
    ]
    assert near == []


@pytest.mark.parametrize(("place", "paper"), [(0, "light"), (1, "dark")])
def test_colours_stand_out_from_the_paper(place, paper):
    """WCAG 2.2, 1.4.11: what must be seen has a contrast of 3:1 to its neighbours."""
    ground = luminance(PALETTE["paper"][place])
    contrast = {}
    for title, group in GROUPS.items():
        low, high = sorted((ground, luminance(getattr(group, paper))))
        contrast[title] = (high + 0.05) / (low + 0.05)
    assert {title: ratio for title, ratio in contrast.items() if ratio < 3} == {}


def test_a_picture_does_not_depend_on_the_fonts_of_the_machine(tmp_path):
    """Drawn with the Liberation fonts of vl-convert 1.9.0. The digest was taken where no font was
    installed, and where there were 38.
    """
    text = {"type": "text", "fontSize": 20, "fontWeight": 600}
    spec = {
        "data": {"values": [{"t": "Parameters − 540 B × 10⁹"}]},
        "mark": text,
        "encoding": {"text": {"field": "t"}},
    }
    # In a process of its own: the fonts are those of its first picture.
    code = (
        "from pathlib import Path; from modelbudget.report.charts.chart_files import draw; "
        f"draw({{'picture': {spec!r}}}, Path({str(tmp_path)!r}))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert "FONTCONFIG_FILE" not in os.environ
    svg, png = (tmp_path / f"picture.{kind}" for kind in ("svg", "png"))
    assert 'font-family="Liberation Sans"' in svg.read_text(encoding="utf-8")
    assert hashlib.sha256(png.read_bytes()).hexdigest()[:16] == "01ebd2c045bd4fe4"


def test_the_title_of_an_axis_has_room_in_its_panel():
    """A sentence below each of two panels made a chart wider than the page."""
    rows = pl.DataFrame({"data_parallel": [1, 8] * 2, "length": [8, 8, 16, 16]})
    rows = rows.with_columns(value=1.0, label=pl.lit("a"))
    for facet in ("length", None):
        chart = area_chart.amounts_along(rows, "peak_training_bytes", "data_parallel", facet=facet)
        is_sentence = "data_parallel: devices that each" in json.dumps(chart.to_dict())
        assert is_sentence == (facet is None)
