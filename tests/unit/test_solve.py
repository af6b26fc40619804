"""Solutions of a sweep with `solve`: all that there are, the frontier, and published shapes."""

import itertools
from pathlib import Path

import polars as pl
import pytest
import yaml
from helpers.project import ROOT
from helpers.tiers import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelbudget.catalogue.published_scaling import published_scaling
from modelbudget.common.errors import InputError
from modelbudget.predict import grid_rows, shape_search
from modelbudget.report.charts.frontier import solve_charts
from modelbudget.report.fit_tables import solve_section
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.read import read
from modelbudget.sweeps.sweep_json import summary

LENGTH = 24
D_HEAD = 8


def by_hand(n_vocab, d_model, n_layer, n_kv_head, d_ff, tied) -> dict[str, int]:
    """Quantities of a Llama with heads of 8 channels, written out."""
    queries, keys = d_model, n_kv_head * D_HEAD
    attention = 2 * d_model * queries + 2 * d_model * keys
    layers = n_layer * (attention + 3 * d_model * d_ff)
    norms = (2 * n_layer + 1) * d_model
    matrices = n_vocab * d_model * (1 if tied else 2)
    total = matrices + layers + norms
    return {
        "n_vocab": n_vocab,
        "d_model": d_model,
        "n_layer": n_layer,
        "d_ff": d_ff,
        "parameters": total,
        "parameter_bytes": 2 * total,
        "without_embeddings": layers + norms,
        "kaplan": 12 * n_layer * d_model**2,
        "palm": 6 * total + 12 * n_layer * d_model * LENGTH,
        "cache_bytes": 2 * 2 * 3 * LENGTH * n_layer * keys,
    }


NAMES = list(by_hand(1, 8, 1, 1, 1, True))
AXES = {
    "n_vocab": [3, 64, 200, 1000],
    "d_model": [8, 16, 32, 64],
    "n_layer": [1, 2, 3, 8],
    "n_kv_head": [1, 2, 4],
    "d_ff": [5, 32, 64, 128],
    "tied": [True, False],
}


@st.composite
def questions(draw) -> dict:
    grid = {
        name: draw(st.lists(st.sampled_from(values), min_size=1, max_size=4, unique=True))
        for name, values in AXES.items()
    }
    bounded = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    rows = list(every(grid))
    at = st.integers(0, max(0, len(rows) - 1))
    within = {
        name: sorted(rows[draw(at)][1][name] if rows else 1 for _ in range(2)) for name in bounded
    }
    best = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return {
        "grid": grid,
        "within": within,
        "best": {name: draw(st.sampled_from(["most", "least"])) for name in best},
    }


def every(grid: dict):
    """Yield axes and values of all shapes that heads and the constraint allow."""
    for values in itertools.product(*grid.values()):
        axes = dict(zip(grid, values, strict=True))
        if axes["d_ff"] >= axes["d_model"] and axes["d_model"] // D_HEAD % axes["n_kv_head"] == 0:
            yield axes, by_hand(**axes)


def text(question: dict) -> str:
    keys = {name: question[name] for name in ("within", "best")}
    return yaml.safe_dump(
        {
            "title": "t", "question": "q", "base": "llama-3-8b",
            "fixed": {"d_head": D_HEAD, "dtype": "bfloat16", "batch": 3, "length": LENGTH},
            "grid": question["grid"],
            "derive": {"n_head": f"d_model / {D_HEAD}"},
            "constraints": ["d_ff >= d_model", f"d_model // {D_HEAD} % n_kv_head == 0"],
            "solve": keys,
            "measure": {"device": "meta", "quantities": ["parameters", "parameter_bytes",
                                                         "cache_bytes"]},
        },
        sort_keys=False,
    )  # fmt: skip


def solved(path: Path, catalogue, content: str):
    path.write_text(content)
    checked = read(path, catalogue)
    return checked, shape_search.solved(shape_search.checked_grids(checked), 2)


def dominates(one: dict, other: dict, best: dict) -> bool:
    """Whether one is at least as good in all objectives, and better in one."""
    pairs = [
        (one[n], other[n]) if wanted == "most" else (other[n], one[n]) for n, wanted in best.items()
    ]
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


@given(questions(), st.sampled_from([8, 2**17]))
@settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
def test_all_shapes_within_the_bounds_and_the_best_of_them(
    tmp_path, catalogue, monkeypatch, question, rows
):
    """Against one shape after another by hand, whole or in chunks of few rows."""
    monkeypatch.setattr(grid_rows, "ROWS", rows)
    left = list(every(question["grid"]))
    counts = [len(left)]
    for name, (least, most) in question["within"].items():
        left = [(axes, has) for axes, has in left if least <= has[name] <= most]
        counts.append(len(left))
    path = tmp_path / "small.yaml"
    if not left:
        with pytest.raises(InputError) as refusal:
            solved(path, catalogue, text(question))
        assert counts[0] == 0 or "solve.within" in str(refusal.value)
        return
    _, found = solved(path, catalogue, text(question))
    assert [found.proof["allowed"], *(one["left"] for one in found.proof["within"])] == counts
    axes = list(question["grid"])
    assert sorted(map(str, found.solutions.select(axes).rows())) == sorted(
        str(tuple(one.values())) for one, _ in left
    )
    best = question["best"]
    front = [has for _, has in left if not any(dominates(o, has, best) for _, o in left)]
    expected: dict[tuple, int] = {}
    for has in front:
        key = tuple(has[name] for name in best)
        expected[key] = expected.get(key, 0) + 1
    shapes = found.frontier.select(*best, shape_search.SHAPES).rows()
    assert {tuple(map(int, row[:-1])): row[-1] for row in shapes} == expected
    assert len(shapes) == len(expected) == found.proof["frontier"]


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 4), min_size=1, max_size=60), st.integers(0, 60))
@settings(max_examples=examples(60))
def test_the_frontier_is_that_of_the_definition_in_one_table_or_two(rows, cut):
    best = {"a": "most", "b": "least", "c": "most"}
    table = pl.DataFrame(rows, ["a", "b", "c", "other"], orient="row")
    named = table.to_dicts()
    expected = {
        (one["a"], one["b"], one["c"])
        for one in named
        if not any(dominates(other, one, best) for other in named)
    }
    whole = shape_search.best_of(table, best)
    parts = [shape_search.best_of(part, best) for part in (table[:cut], table[cut:]) if part.height]
    for found in (whole, shape_search.best_of(pl.concat(parts), best)):
        assert found.select(*best).rows() == sorted(expected, key=lambda row: (-row[0], row[1]))
        assert found[shape_search.SHAPES].sum() == sum(row[:3] in expected for row in rows)


def ladder(name: str) -> list:
    rows = published_scaling(ROOT / "configs" / "published_scaling.yaml")
    (found,) = [one for one in rows if one.title.startswith(name)]
    return [(row, found) for row in found.rows]


HEADS = "n_head * d_head >= d_model / 2 and n_head * d_head <= 2 * d_model"


def shape_question(base: str, axes: dict, constraint: str, within: dict) -> str:
    return yaml.safe_dump(
        {
            "title": "t", "question": "q", "base": base, "grid": axes,
            "constraints": [constraint],
            "solve": {"within": within, "best": {"n_layer": "most"}},
        }
    )  # fmt: skip


def test_each_of_the_50_shapes_of_chinchilla_is_among_those_of_its_size(tmp_path, catalogue):
    """Bounds are the printed numbers, with their rounding."""
    names = ("n_layer", "d_model", "n_head", "d_head")
    printed = {row.model: row.published for row, _ in ladder("Chinchilla")}
    models = {
        base.label: {"d_head": base.fields["d_model"] // base.fields["n_head"]} | base.fields
        for base in catalogue.bases.values()
        if base.label in printed
    }
    assert len(models) == 50
    axes = {name: sorted({model[name] for model in models.values()}) for name in names}
    for label, model in models.items():
        ends = [printed[label] - 500_000, printed[label] + 500_000]
        content = shape_question("chinchilla-a9", axes, HEADS, {"total": ends})
        _, found = solved(tmp_path / "ladder.yaml", catalogue, content)
        shape = {name: model[name] for name in names}
        assert shape in found.solutions.select(names).to_dicts(), label
        assert found.proof["solutions"] < found.proof["allowed"] / 20


def test_each_of_the_8_shapes_of_olmos_ladder_has_exactly_its_printed_size(tmp_path, catalogue):
    names = ("n_layer", "d_model", "n_head", "d_ff")
    listed = yaml.safe_load((ROOT / "configs/sweeps/published-ladders.yaml").read_text())["points"]
    points = {one["label"]: one for one in listed if one["label"].startswith("OLMo ladder")}
    axes = {name: sorted({one[name] for one in points.values()}) for name in names}
    sizes = [row for row, _ in ladder("OLMo ladder") if row.convention is None]
    assert len(sizes) == 8
    for row in sizes:
        within = {"without_input_embedding": [row.published, row.published]}
        content = shape_question("olmo-2", axes, "d_model % n_head = 0", within)
        _, found = solved(tmp_path / "ladder.yaml", catalogue, content)
        shape = {name: points[row.model][name] for name in names}
        assert shape in found.solutions.select(names).to_dicts(), row.model


QUESTION = {
    "grid": {
        "n_vocab": [64, 200, 1000, 2000],
        "d_model": [16],
        "n_layer": [1, 2, 3, 4, 6, 8, 10, 12, 15],
        "n_kv_head": [1, 2],
        "d_ff": [32, 64],
        "tied": [True],
    },
    "within": {"parameters": [20_000, 40_000]},
    "best": {"n_vocab": "most", "n_layer": "most"},
}


def test_the_points_are_the_frontier_and_the_page_gives_the_answer(tmp_path, catalogue):
    checked, found = solved(tmp_path / "small.yaml", catalogue, text(QUESTION))
    expanded = shape_search.of_points(checked, found.frontier)
    points = points_table(expanded.points)
    assert (
        points.select("n_vocab", "n_layer").rows()
        == found.frontier.select("n_vocab", "n_layer").rows()
    )
    published = shape_search.published(catalogue, checked.sweep)
    assert not (published["beyond"] == 0).any()  # none is so small
    nearest = published.filter(pl.col("parameters") >= 40_000).sort("parameters")["label"][0]
    about = summary(expanded) | {"solved": found.proof}
    section = solve_section(found.frontier, about)
    ends = found.frontier.sort("n_vocab")
    assert ends.height > 2
    counted = f"{found.proof['solutions']} of {found.proof['shapes']} shapes meet the bounds."
    assert section["answer"].startswith(counted)
    assert section["answer"].count("One percent more n_vocab costs") == 1
    (chart,) = solve_charts(found.solutions, found.frontier, published, QUESTION["best"]).values()
    said = chart.to_dict()["description"]
    wanted = " and ".join(f"the {wanted} {name}" for name, wanted in QUESTION["best"].items())
    assert f"Dark: the shapes with {wanted}." in said
    assert f"the nearest is {nearest}" in said
    assert solve_charts(found.solutions, found.frontier, published, {"n_layer": "most"}) == {}
    three = QUESTION["best"] | {"parameters": "least"}
    front = shape_search.best_of(found.solutions, three)
    (chart,) = solve_charts(found.solutions, front, published.clear(), three).values()
    assert "No published model has" in chart.to_dict()["description"]
    about["solve"] = {"best": three}
    assert str(front.height) in solve_section(front, about)["answer"]


def test_a_published_model_within_the_bounds_is_compared_with_the_frontier(tmp_path, catalogue):
    question = ROOT / "configs" / "sweeps" / "gpt-2-shapes.yaml"
    content = yaml.safe_load(question.read_text())
    content["grid"] |= {"n_vocab": [32768, 50257, 65536], "d_ff": [1536, 3072]}
    checked, found = solved(tmp_path / "a.yaml", catalogue, yaml.safe_dump(content))
    best = content["solve"]["best"]
    published = shape_search.published(catalogue, checked.sweep)
    assert {"GPT-2 124M", "OPT 125M"} <= set(published.filter(beyond=0)["label"])
    deepest = found.solutions.filter(pl.col("n_vocab") >= 50257)["n_layer"].to_numpy().max()
    (chart,) = solve_charts(found.solutions, found.frontier, published, best).values()
    said = "GPT-2 124M has n_layer 12; with n_vocab of at least 50,257"
    assert f"{said}, {deepest} is possible." in chart.to_dict()["description"]
    shape = {"d_model": 768, "n_layer": 12, "d_ff": 3072, "n_vocab": 50257}
    assert shape in found.solutions.select(*shape).to_dicts()


def test_without_a_solution_the_bound_that_excludes_all_and_the_nearest_shape(tmp_path, catalogue):
    question = QUESTION | {"within": {"n_layer": [3, 8], "parameters": [20_001, 20_002]}}
    (nearest, distance) = min(
        (
            (axes, max(20_001 - has["parameters"], has["parameters"] - 20_002, 0) / 20_000
             + max((3 - has["n_layer"]) / 3, (has["n_layer"] - 8) / 8, 0))
            for axes, has in every(QUESTION["grid"])
        ),
        key=lambda pair: pair[1],
    )  # fmt: skip
    assert 0 < distance < 0.1
    with pytest.raises(InputError) as refusal:
        solved(tmp_path / "none.yaml", catalogue, text(question))
    (line,) = refusal.value.mistakes
    deep = sum(3 <= has["n_layer"] <= 8 for _, has in every(QUESTION["grid"]))
    assert f"solve.within.parameters: none of the {deep} shapes" in line
    assert f"d_model = {nearest['d_model']}, n_layer = {nearest['n_layer']}" in line


@pytest.mark.parametrize(
    ("device", "most"), [("rtx-4090", int(23.64 * 2**30)), ("24GB", 24 * 10**9)]
)
def test_a_device_bounds_bytes(tmp_path, catalogue, device, most):
    content = yaml.safe_load(text(QUESTION | {"within": {"parameter_bytes": device}}))
    content["grid"] |= {"n_layer": [1], "d_model": [8192], "d_ff": [8192]}
    content["grid"]["n_vocab"] = [10**5, 10**6, 10**7]
    content["constraints"] = []
    _, found = solved(tmp_path / "a.yaml", catalogue, yaml.safe_dump(content))
    assert set(found.solutions["n_vocab"]) == {100_000, 1_000_000}
    assert found.proof["within"][0]["most"] == most
