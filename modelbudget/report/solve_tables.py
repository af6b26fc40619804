"""What a sweep with `solve` found: the answer, the proof by count, and tables."""

import polars as pl

from modelbudget.predict.shape_search import BEYOND, SHAPES
from modelbudget.report import tables
from modelbudget.report.charts.format import count
from modelbudget.report.charts.frontier import (
    amount,
    answer,
    at_least_as_good,
    bound,
    cost,
    shown_models,
)

MOST_ROWS = 12


def solve_section(
    frontier: pl.DataFrame | None, published: pl.DataFrame | None, summary: dict
) -> dict | None:
    """Return the answer in a sentence, and the tables of the proof, the frontier and the models."""
    if frontier is None or published is None:
        return None
    proof, best = summary["solved"], summary["solve"]["best"]
    counted = f"{count(proof['solutions'])} of {count(proof['shapes'])} shapes meet the bounds"
    return {
        "answer": f"{counted}. {answer(frontier, best)}" if len(best) > 1 else f"{counted}.",
        "proof": tables.table(_proof(proof, summary["points"]), "Shapes left", numbers=("shapes",)),
        "frontier": _frontier(frontier, best),
        "models": _models(frontier, published, best),
        "all": proof["kept"] == proof["solutions"],
        "kept": count(proof["kept"]),
    }


def _proof(proof: dict, points: int) -> list[dict]:
    """Return how many shapes are left after each step."""
    steps = [("in the grid", proof["shapes"]), ("allowed by the constraints", proof["allowed"])]
    for limit in proof["within"]:
        least, most = (amount(limit["name"], limit[end]) for end in ("least", "most"))
        ends = f"from {least} to {most}" if limit["least"] else f"at most {most}"
        unknown = f"; {count(limit['unknown'])} without a formula" if limit["unknown"] else ""
        steps.append((f"{limit['name']} {ends}{unknown}", limit["left"]))
    steps += [("on the frontier", proof["frontier"]), ("instantiated and compared", points)]
    return [{"step": step, "shapes": shapes} for step, shapes in steps]


def _frontier(frontier: pl.DataFrame, best: dict[str, str]) -> str:
    """Return the table of best shapes, with what the first objective costs."""
    every = -(-frontier.height // MOST_ROWS)
    rows = frontier.gather_every(every).to_dicts()
    shown = [
        {"shape": f"shape {1 + i * every}"}
        | {name: _text(name, value) for name, value in row.items() if name != SHAPES}
        | {"equally good": row[SHAPES]}
        for i, row in enumerate(rows)
    ]
    more = f", every {every}th of {count(frontier.height)}" if every > 1 else ""
    if len(best) == 2:
        first, second = best
        heading = f"per 1 % {first}"
        more += f"; last column: {second}, from the last row on"
        for here, row in zip(shown, rows, strict=True):
            price = cost(row, rows[-1], best)
            here[heading] = None if price is None else f"{price:+.2f} %".replace("-", "−")
    return tables.table(shown, f"The best shapes{more}", numbers=tuple(shown[0])[1:])


def _models(frontier: pl.DataFrame, published: pl.DataFrame, best: dict[str, str]) -> str | None:
    """Return the table of published models within the bounds, with a shape that is as good."""
    models = shown_models(published)
    if len(best) < 2 or models.is_empty():
        return None
    first, second = list(best)[:2]
    heading = f"best {second}"
    rows = []
    for model in models.to_dicts():
        row = {name: _text(name, model[name]) for name in model if name not in ("model", BEYOND)}
        as_good = at_least_as_good(frontier, model, best)
        rows.append(row | {heading: as_good and _text(second, as_good[second])})
    caption = "Published models within the bounds, or nearest to them; last column: the best "
    caption += f"{second} of the grid with {first} {bound(first, best)} that"
    return tables.table(rows, caption, numbers=tuple(rows[0])[1:])


def _text(name: str, value) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return amount(name, value) if isinstance(value, int) else value


def bounds_and_objectives(summary: dict) -> list[tuple[str, list[str]]]:
    """Return terms and values of the key `solve` of a sweep file."""
    solve = summary["solve"] or {"within": {}, "best": {}}
    return [
        ("within", [f"{name}: {_bound(bound)}" for name, bound in solve["within"].items()]),
        ("best", [f"the {wanted} {name}" for name, wanted in solve["best"].items()]),
    ]


def _bound(bound: list[int] | str) -> str:
    return bound if isinstance(bound, str) else " to ".join(map(count, bound))
