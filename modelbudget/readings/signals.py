"""Formulas as Vega expressions: what a browser computes behind a slider."""

from types import SimpleNamespace

import altair as alt


def namespace(family, words: dict[str, str]) -> SimpleNamespace:
    """One Vega signal for each size and switch of a family (yes is 1, no is 0); words as given."""
    sizes = {name: alt.param(name=name) for name in family.sizes()}
    return SimpleNamespace(**sizes, **words)
