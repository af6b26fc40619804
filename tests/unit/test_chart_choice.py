"""The key `charts` of a sweep: what it draws, and what it refuses."""

import pytest
from helpers.results import charts_of_sweep, compared

from modelbudget.common.errors import InputError
from modelbudget.sweeps.sweep_json import summary

GRID = """base: embedding
grid: {{n_vocab: [16, 64, 256], d_model: [4, 8], tied: [true, false]}}
measure: {{quantities: [parameters]}}
charts: [{}]
"""
WRONG = {
    "{x: d_modl}": "charts[0].x = 'd_modl': does not vary; allowed: d_model, n_vocab, tied",
    "{x: d_model, facet: tied}": "charts[0]: n_vocab varies too; name it as colour or facet",
    "{x: tied, colour: tied}": "charts[0]: x, colour and facet must be different fields",
    "{x: n_vocab, y: flops_forward, colour: tied, facet: d_model}": "charts[0].y = 'flops_forward'"
    ": is not in measure.quantities; allowed: parameters",
}


def shown(chart: dict) -> list[dict]:
    """Rows of all panels of a chart."""
    return [row for rows in chart["datasets"].values() for row in rows]


@pytest.mark.parametrize("choice", WRONG)
def test_a_chart_that_cannot_be_drawn_is_refused_in_one_line(sweep, choice):
    with pytest.raises(InputError) as refused:
        sweep(GRID.format(choice).replace("base: embedding", "base: gpt-2"))
    assert WRONG[choice] in str(refused.value)


def test_a_derived_field_is_refused_as_such_though_it_varies(sweep):
    with pytest.raises(InputError, match=r"x = 'd_ff': is derived, no axis; allowed: d_model$"):
        sweep(
            "base: gpt-2\ngrid: {d_model: [64, 128]}\nderive: {d_ff: 4 * d_model}\n"
            "charts: [{x: d_ff}]\n"
        )


def test_a_chart_has_each_point_once_with_its_own_amount(sweep, tmp_path, catalogue):
    """Counted by hand: an embedding of n_vocab × d_model, twice if the head is not tied to it."""
    sweep(
        "base: embedding-lm\ngrid: {n_vocab: [16, 64, 256], d_model: [4, 8], tied: [true, false]}\n"
        "charts: [{x: n_vocab, colour: d_model, facet: tied}]\n"
    )
    expanded, _, comparison = compared(tmp_path / "sweep.yaml", catalogue)
    about = summary(expanded)
    drawn = charts_of_sweep(about["axes"], comparison, [], summary=about)
    spec = drawn["chosen-1"].to_dict()
    panels = [panel["title"]["text"] for panel in spec["concat"]]
    assert panels == ["tied", "not tied"]
    for title, panel in zip(panels, spec["concat"], strict=True):
        name = panel["data"]["name"]
        rows = {(row["n_vocab"], row["shade"]): row["value"] for row in spec["datasets"][name]}
        assert rows == {
            (n, str(d)): n * d * (1 + title.startswith("not"))
            for n in (16, 64, 256)
            for d in (4, 8)
        }
    ends = [panel["layer"][0]["encoding"]["y"]["scale"]["domain"] for panel in spec["concat"]]
    assert ends == [[64, 2 * 256 * 8]] * 2  # panels have one scale, to be compared
    assert len(shown(drawn["total"].to_dict())) == 12
