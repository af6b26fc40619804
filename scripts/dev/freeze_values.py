"""Freeze what closed formulas predict, as the guard of the programs that replace them.

    PYTHONPATH=tests python scripts/dev/freeze_values.py

Random models of the tests' strategies, and the decoders of the catalogue in half precision and in
float32. A value is frozen only where a closed formula holds. Run it only at a commit whose formulas
are compared with traces: the values are theirs, and no longer needed once nothing is replaced.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product

from helpers import frozen_values, other_families, strategies
from helpers.catalogue import CATALOGUE
from helpers.frozen_values import QUANTITIES, Case
from hypothesis import Phase, given, settings

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.families.decoder import Decoder
from modelbudget.sweeps.derive import named_architecture

RANDOM = {
    strategies.decoders_that_run: 650,
    strategies.decoders_with_known_peaks: 700,
    strategies.smallest_that_run: 60,
    other_families.trained: 330,
}
"""How many examples of each strategy."""
RUNS = (
    {"dtype": "bfloat16", "attention_kernel": "flash", "foreach": True},
    {"dtype": "float32", "attention_kernel": "math", "recompute": "full"},
    {"dtype": "float32", "autocast": "bfloat16", "attention_kernel": "math"},
)


def of_strategies() -> Iterator[tuple]:
    for strategy, n_examples in RANDOM.items():
        yield from examples_of(strategy(), n_examples)


def examples_of(strategy, n_examples: int) -> list[tuple]:
    examples: list[tuple] = []

    @settings(
        max_examples=n_examples, derandomize=True, database=None, deadline=None,
        phases=[Phase.generate],
    )  # fmt: skip
    @given(strategy)
    def draw(example):
        examples.append(example)

    draw()
    return examples


def of_catalogue() -> Iterator[tuple]:
    """One model of each choice of words and switches."""
    seen = set()
    for base in CATALOGUE.bases.values():
        if base.model is None or base.family is not Decoder:
            continue
        a = named_architecture(base)
        options = {n: v for n, v in a if isinstance(v, str | bool)}
        if (key := tuple(options.items())) not in seen:
            seen.add(key)
            runs = (RunConfig.model_validate({"batch": 2, "length": 512} | run) for run in RUNS)
            yield from product([a], runs)


def frozen(a, run) -> Case:
    """Return the values for which there is a closed formula."""
    closed = [
        quantity for quantity in QUANTITIES
        if quantity == "parameters" or a.has_formula_for(quantity, a, run)
    ]  # fmt: skip
    return Case(a, run, frozen_values.values_of(a, run, closed))


def main() -> None:
    cases = [
        frozen(a, run)
        for a, run in (*of_strategies(), *of_catalogue())
        if not run_mistake(a, run)
    ]  # fmt: skip
    frozen_values.write(cases)
    print(len(cases), "cases,", frozen_values.PATH.stat().st_size, "bytes", file=sys.stderr)
    print(Counter(quantity for case in cases for quantity in case.values), file=sys.stderr)


if __name__ == "__main__":
    main()
