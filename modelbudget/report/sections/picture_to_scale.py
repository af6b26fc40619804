"""Act 1: what the parameters do, as two models to scale."""

import re

from modelbudget.common.number_format import in_full, percent
from modelbudget.components.groups import VOCABULARY
from modelbudget.report.chart_specs import variable_of_group
from modelbudget.report.model_stack import VERBS, Stack, picture, stack_of
from modelbudget.report.page_results import SweepResult
from modelbudget.report.section import Page, Section

_TENTHS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "all")


def _contents(page: Page) -> dict | None:
    """Return the smallest model of the sweep that has a headline, and the model of that name."""
    stacks = two_stacks(page.sweeps)
    if stacks is None:
        return None
    small, large = stacks
    page.acts["what-they-do"] = {
        "verbs": [(group, variable_of_group(group), verb) for group, verb in VERBS.items()],
        "picture": picture(stacks),
    }
    return {
        "page_title": f"What {in_full(large.total)} parameters do",
        "title": title(large),
        "finding": finding(small, large),
        "stacks": stacks,
        "verbs": [group for group in VERBS if any(stack.share(group) for stack in stacks)],
    }


def title(stack: Stack) -> str:
    """Return in how many of ten parameters what is done most is done."""
    group = max(VERBS, key=stack.share)
    n = round(10 * stack.share(group))
    return (
        f"{_TENTHS[n].capitalize()} in ten parameters of {stack.label} {_plural(group)} ({group})"
    )


def finding(small: Stack, large: Stack) -> str:
    """Return what most of the other parameters do, and the share of the vocabulary in both."""
    _, second = sorted({*VERBS} - {*VOCABULARY}, key=large.share)[:-3:-1]
    return (
        f"In {large.label}, {percent(large.share(second))} {_plural(second)} ({second}), and "
        f"{percent(large.of_vocabulary)} are the table in which tokens are looked up. In "
        f"{small.label} that table is {percent(small.of_vocabulary)}. Areas are to scale within "
        "a model."
    )


def _plural(group: str) -> str:
    """Return what the parameters of a group do: `work on each token alone`."""
    return re.sub(r"^(\w+)s\b", r"\1", VERBS[group])


def two_stacks(sweeps: list[SweepResult]) -> tuple[Stack, Stack] | None:
    """Return the smallest decoder and the headline of the sweep that names one."""
    for sweep in sweeps:
        headline = sweep.summary["headline"]
        stacks = stacks_of(sweep) if headline else []
        large = next((stack for stack in stacks if stack.label == headline), None)
        if large and len(stacks) > 1:
            return min(stacks, key=lambda stack: stack.total), large
    return None


def stacks_of(sweep: SweepResult) -> list[Stack]:
    """Return the stack of every point whose parameters all have a verb."""
    decoders = {row["point"]: row for row in sweep.points.filter(family="decoder").to_dicts()}
    counted = sweep.comparison.filter(quantity="parameters").drop_nulls("measured")
    stacks = [
        stack_of(decoders[point], rows)
        for (point,), rows in counted.group_by("point", maintain_order=True)
        if point in decoders
    ]
    return [stack for stack in stacks if stack.is_plain]


SECTION = Section(10, "what-they-do", "What they do", _contents)
