"""Act 2: what decides the MLP's share, over all published plain decoders."""

import math
from typing import NamedTuple

import polars as pl

from modelbudget.common.number_format import percent, short
from modelbudget.components.groups import VOCABULARY
from modelbudget.report.charts.chart_tables import evenly_spaced, grouped
from modelbudget.report.model_stack import VERBS, Stack, data
from modelbudget.report.section import Page, Section
from modelbudget.report.sections.picture_to_scale import stacks_of, two_stacks

SMALL, LARGE = 300_000_000, 1_000_000_000
"""Sizes below and above which the findings count models."""
MOST_OF_SERIES = 8
"""Models of one series that are drawn; of more, some at even spacing."""
MOST_KINDS = 4
"""Kinds whose ranges are named, those of most models."""
HIGH, WIDTHS = 320, (600, 720, 864)
"""Height of the drawing, and the widths that names are placed for."""
DOT, CHARACTER = 6, 7.3
"""Half of the width of a dot with its outline, and the mean width of a character, in pixels."""
PLACES = (("start", 8, 4), ("end", -8, 4), ("middle", 0, -10), ("middle", 0, 18))
"""Places of a name beside its dot, above and below: its anchor, and its distance in pixels."""


class Model(NamedTuple):
    """A published model: its stack, its kind of attention, and whether its MLP is gated."""

    stack: Stack
    kind: str
    is_gated: bool

    @property
    def mlp(self) -> float:
        return self.stack.share("MLP")


def _contents(page: Page) -> dict | None:
    models, stacks = models_of(page), two_stacks(page.sweeps)
    if len(models) < 2 or stacks is None:
        return None
    sizes = [math.log10(model.stack.total) for model in models]
    low, high = math.floor(2 * sizes[0]) / 2, math.ceil(2 * sizes[-1]) / 2
    dots = [
        {
            "x": f"{100 * (size - low) / (high - low):.2f}",
            "y": f"{HIGH * (1 - model.mlp):.1f}",
            "model": model,
        }
        for size, model in zip(sizes, models, strict=True)
    ]
    labels = [model.stack.label for model in models]
    first = labels.index(stacks[1].label) if stacks[1].label in labels else len(models) - 1
    page.acts["what-decides"] = {"models": [data(model.stack) for model in models], "first": first}
    of_kind, of_size = explained(models)
    return {
        "title": f"Above {short(LARGE)} parameters, "
        + (
            "attention and gating decide the MLP’s share more than size does"
            if of_kind > of_size
            else "size decides the MLP’s share"
        ),
        "finding": finding(models),
        "high": HIGH,
        "dots": dots,
        "names": _names(dots),
        "columns": [
            (100 * (power - low) / (high - low), short(10**power))
            for power in range(math.ceil(low), math.floor(high) + 1)
        ],
        "first": first,
        "stack": models[first].stack,
    }


def models_of(page: Page) -> list[Model]:
    """Return the published plain decoders in ascending size, long series thinned."""
    by_architecture: dict[str, tuple[str, Model]] = {}
    for sweep in page.sweeps:
        points = {row["label"]: row for row in sweep.points.iter_rows(named=True)}
        for stack in stacks_of(sweep):
            point = points[stack.label]
            label = page.known.get(point["architecture"])
            if label and point["architecture"] not in by_architecture:
                heads = point["n_head"], point["n_kv_head"]
                attention = "MHA" if heads[0] == heads[1] else "MQA" if heads[1] == 1 else "GQA"
                base = page.catalogue.bases.get(point["base"])
                model = Model(stack._replace(label=label), attention, bool(point["gated"]))
                by_architecture[point["architecture"]] = ((base and base.series) or label, model)
    in_order = sorted(by_architecture.values(), key=lambda entry: _size(entry[1]))
    by_series = grouped(in_order, lambda entry: entry[0]).values()
    kept = [model for of in by_series for _, model in evenly_spaced(of, MOST_OF_SERIES)]
    return sorted(kept, key=_size)


def _size(model: Model) -> tuple[int, str]:
    return model.stack.total, model.stack.label


def explained(models: list[Model]) -> tuple[float, float]:
    """Return the shares of the variance of the MLP's share that kind and size explain above LARGE.

    Kind: of attention and gating, as means of groups; size: a line over the logarithm.
    """
    large = [model for model in models if model.stack.total >= LARGE]
    if len(large) < 3:
        return 0.0, 0.0
    columns = ((_kind(model), model.mlp, math.log10(model.stack.total)) for model in large)
    table = pl.DataFrame(list(columns), ["kind", "share", "size"], orient="row")
    mean_of_kind = pl.col("share").mean().over("kind")
    of_kind = 1 - (pl.col("share") - mean_of_kind).var() / pl.col("share").var()
    return table.select(of_kind.alias("kind"), size=pl.corr("size", "share") ** 2).row(0)


def _kind(model: Model) -> str:
    return f"{model.kind}, {'gated' if model.is_gated else 'not gated'}"


def finding(models: list[Model]) -> str:
    """Count the models in which the embedding is the largest part, and give ranges by kind."""
    small = [model.stack for model in models if model.stack.total < SMALL]
    large = [model for model in models if model.stack.total >= LARGE]
    texts = []
    if small:
        n = sum(map(_is_vocabulary, small))
        above = sum(_is_vocabulary(model.stack) for model in large) or "none"
        texts.append(
            f"Embedding and head are the largest part of {n} of {len(small)} models below "
            f"{short(SMALL)} parameters, and of {above} of {len(large)} above {short(LARGE)}."
        )
    by_kind = sorted(grouped(large, _kind).items(), key=lambda entry: -len(entry[1]))
    ranges = []
    for kind, of in by_kind[:MOST_KINDS]:
        shares = [model.mlp for model in of]
        ends = dict.fromkeys(map(percent, (min(shares), max(shares))))
        ranges.append(f"{' to '.join(ends)} with {kind}")
    of_kind, of_size = explained(models)
    texts.append(
        f"Above {short(LARGE)}, the kind of attention and gating explain {percent(of_kind)} of the "
        f"variance of the MLP’s share, and size {percent(of_size)}. The MLP has "
        f"{'; '.join(ranges)}."
    )
    return " ".join(texts)


def _is_vocabulary(stack: Stack) -> bool:
    rest = max(stack.share(group) for group in VERBS if group not in VOCABULARY)
    return stack.of_vocabulary > rest


def _names(dots: list[dict]) -> list[dict]:
    """Return names with their places: of the first, the last, and the ends of each kind.

    A name stands beside its dot, above or below it, where it covers no other dot and no name,
    whether the drawing is wide or narrow; without such a place it is left out.
    """
    by_kind = grouped(dots, lambda dot: _kind(dot["model"])).values()
    wanted = [dots[-1], dots[0], *(of[-1] for of in by_kind)]
    wanted += [end(of, key=lambda dot: float(dot["y"])) for of in by_kind for end in (min, max)]
    names: list[dict] = []
    for dot in {dot["model"].stack.label: dot for dot in wanted}.values():
        places = (dot | {"anchor": anchor, "dx": dx, "dy": dy} for anchor, dx, dy in PLACES)
        others = [other for other in dots if other is not dot]
        free = (
            name for name in places if all(_is_free(name, width, others, names) for width in WIDTHS)
        )
        names += list(free)[:1]
    return names


def _is_free(name: dict, width: int, dots: list[dict], names: list[dict]) -> bool:
    """Return whether a name covers none of these dots and names in a drawing of this width."""
    left, right, top, bottom = _box(name, width)
    taken = [_box(other, width) for other in names]
    taken += [
        (x - DOT, x + DOT, y - DOT, y + DOT)
        for x, y in ((width * float(dot["x"]) / 100, float(dot["y"])) for dot in dots)
    ]
    return (
        left >= 0 and right <= width
        and all(right < x or left > end or bottom < y or top > low for x, end, y, low in taken)
    )  # fmt: skip


def _box(name: dict, width: int) -> tuple[float, float, float, float]:
    """Return the left, right, upper and lower edge of a name in pixels."""
    wide = CHARACTER * len(name["model"].stack.label)
    left = width * float(name["x"]) / 100 + name["dx"]
    left -= {"start": 0, "middle": wide / 2, "end": wide}[name["anchor"]]
    baseline = float(name["y"]) + name["dy"]
    return left, left + wide, baseline - 12, baseline + 4


SECTION = Section(20, "what-decides", "What decides it", _contents)
