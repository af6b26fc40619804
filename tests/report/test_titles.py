"""The title of every chart of every sweep that measures, counted again from its data."""

import re
from collections import Counter, defaultdict

import polars as pl
import pytest
from helpers.results import charts_of_sweep, compared

from modelbudget.catalogue.accelerators import accelerators
from modelbudget.common.paths import ACCELERATORS, SWEEPS
from modelbudget.components.groups import group_of
from modelbudget.report.charts.component_charts import DRAWN
from modelbudget.report.page_results import SweepResult
from modelbudget.sweeps.fields_in_words import UNITS
from modelbudget.sweeps.sweep_json import summary

SLOW = ("catalogue-memory", "pipeline")
PREDICTED = re.compile(r"^solve:|^  device: none\b", re.MULTILINE)
"""What a sweep has that measures nothing: no test counts its titles again."""
NAMES = [
    pytest.param(path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else [])
    for path in sorted(SWEEPS.glob("*.yaml"))
    if not PREDICTED.search(path.read_text(encoding="utf-8"))
]
"""All sweeps that measure, those on request too."""
NO_CHART = {"training-fits", "real-memory"}
"""Sweeps of process memory or lengths, which have none of these charts."""
TESTED = {
    "checkpointing": "test_memory_charts.py: test_memory_saved_for_flops_added",
    "activation-bytes-total": "test_memory_charts.py: test_length_squared_dominates_...",
    "inference-parts": "test_memory_charts.py: test_parts_of_inference_add_up_...",
    "cache-bytes-total": "test_memory_charts.py: test_the_cache_exceeds_the_weights_...",
}
"""Titles of charts with more than one kind of quantity, or that solve for a length."""
LETTERS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15, "k": 1e3}
LARGEST = re.compile(
    r"The largest part of the (.+) is (.+) in (?:all ([\d,]+)|([\d,]+) of ([\d,]+)) models: "
    r"([<> \d.]+ %)(?: in each| \((.+?)\))(?: to ([<> \d.]+ %) \((.+)\))?$"
)
ALONG = re.compile(r"From (\w+) = ([\d,]+) to ([\d,]+), (.+?)(?: \(([^()]+)\))?$")
MOVE = re.compile(r"the share of (.+?) (falls|rises) from ([<> \d.]+ %) to ([<> \d.]+ %)")
GROWS = re.compile(r"the total (grows|falls) from (.+) to (.+), ([\d.,e+]+) ×")
AMOUNT = re.compile(r"([\d.,]+)\s?([KMGBTPk]?)")
HALF = re.compile(r"(.+?) holds? more than half of the (.+) from ([\d,]+) tokens on(?: \((.+)\))?$")
CONSTANT = re.compile(r"(.+?) of .+? at (\w+) = ([\d,]+) to ([\d,]+)(?: \((.+)\))?$")
PEAK = re.compile(r"The peak is (.+?) \((.+?)\) to (.+?) \((.+?)\); (.+)$")


@pytest.fixture(scope="module", params=NAMES)
def drawn(request, catalogue):
    """The swept points of one sweep, their values, and the titles of its charts."""
    expanded, points, comparison = compared(SWEEPS / f"{request.param}.yaml", catalogue)
    found = SweepResult(summary(expanded), points, comparison, dict)
    charts = charts_of_sweep(found.summary["axes"], comparison, accelerators(ACCELERATORS))
    titles = {
        name: " ".join(chart.to_dict()["title"]["subtitle"]).partition(". ")[0].removesuffix(".")
        for name, chart in charts.items()
    }
    return found, titles


def close(text: str, value: float) -> bool:
    """Whether a number in three digits is the value."""
    number, letter = AMOUNT.match(text).groups()
    return float(number.replace(",", "")) * LETTERS[letter] == pytest.approx(value, rel=6e-3)


def is_percent(text: str, share: float) -> bool:
    number = float(text.strip("<> %"))
    if "<" in text or ">" in text:
        return share * 100 < number if "<" in text else share * 100 > number
    return number == pytest.approx(100 * share, abs=0.051)


def number(text: str) -> int:
    return int(text.replace(",", ""))


class Values:
    """The values of one quantity by point and group, with the settings and labels of points."""

    def __init__(self, found, quantity: str, given_alone: bool | None):
        rows = found.comparison.filter(pl.col("quantity") == quantity)
        in_grid = 1
        for values in found.summary["axes"].values():
            in_grid *= len(values)
        in_grid *= bool(found.summary["axes"])
        self.of, self.label, self.settings = defaultdict(Counter), {}, {}
        fields = rows.columns[2 : rows.columns.index("component")]
        for row in rows.iter_rows(named=True):
            point = row["point"]
            if given_alone is not None and (int(point) > in_grid) != given_alone:
                continue
            self.of[point][group_of(row["component"])] += row["measured"]
            self.label[point] = row["label"]
            self.settings[point] = {field: row[field] for field in fields}

    def total(self, point: str) -> int:
        return self.of[point].total()

    def share(self, point: str, group: str) -> float:
        return self.of[point][group] / self.total(point)

    def at(self, text: str | None, **more: int) -> list[str]:
        """The points with all of these settings, as a title writes them."""
        found = []
        for point, settings in self.settings.items():
            if all(settings[name] == value for name, value in more.items()) and all(
                self._has(settings, one) for one in (text or "").split(", ") if one
            ):
                found.append(point)
        assert found, text
        return found

    def _has(self, settings: dict, text: str) -> bool:
        name, _, values = text.partition(" = ")
        if not values:  # `tied`, `not tied`, or both
            return settings[text.split()[-1]] in {
                not one.startswith("not ") for one in text.split(" or ")
            }
        return str(settings[name]).lower() in values.lower().replace(",", "").split(" or ")


def check_models(found, quantity: str, title: str) -> None:
    values = Values(found, quantity, given_alone=True)
    if not values.of:
        values = Values(found, quantity, given_alone=None)
    points = [point for point in values.of if values.total(point)]
    what, group, every, n, m, low, at_low, high, at_high = LARGEST.match(title).groups()
    assert number(every or m) == len(points)
    ahead = [p for p in points if values.of[p][group] == max(values.of[p].values())]
    assert number(every or n) == len(ahead)
    for other in {one for point in points for one in values.of[point]}:
        more = [p for p in points if values.of[p][other] == max(values.of[p].values())]
        assert len(more) <= len(ahead)
    shares = [values.share(point, group) for point in ahead]
    assert is_percent(low, min(shares))
    assert is_percent(high or low, max(shares))
    for text, label in ((low, at_low), (high, at_high)):
        if label:
            assert any(
                values.label[p] == label and is_percent(text, values.share(p, group)) for p in ahead
            )
    assert what == UNITS[quantity].removeprefix("bytes of ")


def check_shares(found, quantity: str, title: str) -> None:
    values = Values(found, quantity, given_alone=False)
    if half := HALF.match(title):
        names, what, first, where = half.groups()
        assert what == UNITS[quantity].removeprefix("bytes of ")
        groups = names.lower().split(" and ")
        for point in values.at(where):
            share = sum(values.share(point, group) for group in groups)
            assert (share > 0.5) == (values.settings[point]["n_vocab"] >= number(first))
        return
    axis, first, last, moves, where = ALONG.match(title).groups()
    starts, ends = (values.at(where, **{axis: number(one)}) for one in (first, last))
    changes = {
        group: values.share(ends[0], group) - values.share(starts[0], group)
        for group in values.of[starts[0]] | values.of[ends[0]]
    }
    parsed = MOVE.findall(moves)
    assert bool(parsed) != (moves == "no share changes")
    assert parsed or not any(round(abs(change), 3) for change in changes.values())
    for group, verb, before, after in parsed:
        assert before != after
        for points, text in ((starts, before), (ends, after)):
            assert all(is_percent(text, values.share(point, group)) for point in points), group
        best = min if verb == "falls" else max
        assert changes[group] == pytest.approx(best(changes.values()))


def check_total(found, quantity: str, title: str) -> None:
    values = Values(found, quantity, given_alone=False)
    if " × that of " in title:
        check_amounts(title, {values.label[point]: values.total(point) for point in values.of})
        return
    if constant := CONSTANT.match(title):
        amount, axis, *ends, where = constant.groups()
        for one in ends:
            at_end = [values.total(point) for point in values.at(where, **{axis: number(one)})]
            assert all(close(amount, total) for total in at_end)
        return
    axis, first, last, change, where = ALONG.match(title).groups()
    verb, before, after, times = GROWS.match(change).groups()
    (start,), (end,) = (
        {values.total(point) for point in values.at(where, **{axis: number(one)})}
        for one in (first, last)
    )
    assert (verb == "grows") == (end > start)
    assert close(before, start)
    assert close(after, end)
    assert close(times, max(start, end) / min(start, end))


def peaks_of(found) -> dict[str, dict[str, int]]:
    rows = found.comparison.filter(quantity="peak_training_bytes").drop_nulls("measured")
    peaks = defaultdict(dict)
    for label, phase, value in rows.select("label", "component", "measured").rows():
        peaks[label][phase] = value
    return peaks


def check_peaks(found, title: str) -> None:
    peaks = peaks_of(found)
    least, at_least, most, at_most, setting = PEAK.match(title).groups()
    totals = {label: max(of.values()) for label, of in peaks.items()}
    for text, label, end in ((least, at_least, min), (most, at_most, max)):
        assert close(text, end(totals.values()))
        assert totals[label] == end(totals.values())
    backward = [
        label for label, of in peaks.items() if of["second.forward_backward"] == totals[label]
    ]
    optimizer = [label for label, of in peaks.items() if of["second.optimizer"] == totals[label]]
    for phase, labels in (("backward pass", backward), ("optimizer step", optimizer)):
        assert bool(labels) == (phase in setting)
        if f"{phase} sets it for all" in setting:
            assert len(labels) == len(peaks)
        for label in labels if len(labels) < 7 and "all" not in setting else []:
            assert label in setting


def check_amounts(title: str, totals: dict[str, int]) -> None:
    label, times, other = re.match(r"(.+?): .+?, ([\d.,]+) × that of (.+) \(", title).groups()
    assert totals[label] == max(totals.values())
    assert totals[other] == min(totals.values())
    assert close(times, totals[label] / totals[other])


def of_every_point(found, name: str) -> dict[str, int]:
    """The values that a chart of every point has, by label: of a peak its largest phase."""
    measured = {*found.comparison.drop_nulls("measured")["quantity"]}
    first = name.removesuffix("every-point").strip("-").replace("-", "_") or min(measured)
    rows = found.comparison.filter(quantity=first)
    amounts = (pl.max if first.startswith("peak") else pl.sum)("measured")
    return dict(rows.group_by("label").agg(amounts).rows())


def test_every_title_holds(drawn):
    found, titles = drawn
    assert bool(titles) == (found.name not in NO_CHART)
    for name, title in titles.items():
        check(found, name, title)


def check(found, name: str, title: str) -> bool:
    """Count the title of a chart of a sweep again; return whether this file can."""
    quantity = next((one for one in DRAWN if name.startswith(one.replace("_", "-"))), "parameters")
    kind = name.removeprefix(quantity.replace("_", "-")).strip("-")
    if name in TESTED:
        return False
    if name.endswith("every-point"):
        check_amounts(title, of_every_point(found, name))
    elif kind == "peak-parts":
        check_peaks(found, title)
    elif kind == "shares":
        check_shares(found, quantity, title)
    elif kind == "total":
        check_total(found, quantity, title)
    elif kind == "models" and quantity == "cache_bytes":
        alone = Values(found, quantity, given_alone=True)
        check_amounts(title, {alone.label[one]: alone.total(one) for one in alone.of})
    else:
        assert kind == "models"
        check_models(found, quantity, title)
    return True
