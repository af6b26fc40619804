"""What a sweep with `solve` found: the answer, the proof by count, and tables."""

import polars as pl

from modelbudget.predict.shape_search import SHAPES
from modelbudget.report import tables
from modelbudget.report.charts.format import count
from modelbudget.report.charts.frontier import amount, answer

MOST_ROWS = 12


def solve_section(frontier: pl.DataFrame | None, summary: dict) -> dict | None:
    """Return the answer in a sentence, and the tables of the proof and of the frontier."""
    if frontier is None:
        return None
    proof, best = summary["solved"], summary["solve"]["best"]
    counted = f"{count(proof['solutions'])} of {count(proof['shapes'])} shapes meet the bounds"
    return {
        "answer": f"{counted}. {answer(frontier, best)}" if len(best) > 1 else f"{counted}.",
        "proof": tables.table(_proof(proof, summary["points"]), "Shapes left"),
        "frontier": _frontier(frontier),
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


def _frontier(frontier: pl.DataFrame) -> str:
    """Return the table of best shapes."""
    every = -(-frontier.height // MOST_ROWS)
    rows = frontier.gather_every(every).to_dicts()
    shown = [
        {"shape": f"shape {1 + i * every}"}
        | {name: _text(name, value) for name, value in row.items() if name != SHAPES}
        | {"equally good": row[SHAPES]}
        for i, row in enumerate(rows)
    ]
    more = f", every {every}th of {count(frontier.height)}" if every > 1 else ""
    return tables.table(shown, f"The best shapes{more}")


def _text(name: str, value) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return amount(name, value) if isinstance(value, int) else value
