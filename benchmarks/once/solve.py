"""Time the search of a hundred million shapes, and check a sample of them one by one.

    python benchmarks/once/solve.py

The sweep `llama-3-8b-shapes`: every shape of its grid within bounds on parameters and on the memory
of a device. Of shapes drawn at random, some among the solutions, each is computed once more by the
formula of one model: whether it is a solution must be the same.
"""

import random
import time
from pathlib import Path

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.paths import MODELS, SWEEPS
from modelbudget.predict.shape_search import bounds_of, checked_grids, solved, value_of
from modelbudget.sweeps.expand import point_at
from modelbudget.sweeps.read import CheckedSweep, read

SWEEP, THREADS, COMPARED = "llama-3-8b-shapes", 2, 3_000


def main() -> None:
    checked = read(SWEEPS / f"{SWEEP}.yaml", Catalogue(MODELS))
    start, used = time.perf_counter(), time.process_time()
    grids = checked_grids(checked)
    found = solved(grids, THREADS)
    taken, used = time.perf_counter() - start, time.process_time() - used
    n = grids.combinations
    print(f"{n:,} shapes in {taken:.1f} s ({used:.1f} s of processor time)")
    print(found.proof)
    axes = checked.sweep.axes()
    draw = random.Random(0)
    drawn = [{name: draw.choice(values) for name, values in axes.items()} for _ in range(COMPARED)]
    drawn += found.solutions.select(*axes).sample(COMPARED, seed=0).to_dicts()
    solutions = set(found.solutions.select(*axes).iter_rows())
    start = time.perf_counter()
    met = [meets(checked, settings) for settings in drawn]
    taken = time.perf_counter() - start
    assert met == [tuple(settings.values()) in solutions for settings in drawn]
    print(
        f"{len(drawn):,} one by one, equal ({sum(met):,} solutions), {len(drawn) / taken:,.0f} /s"
    )
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(line for line in status if line.startswith("VmHWM")))


def meets(checked: CheckedSweep, settings: dict) -> bool:
    """Return whether the constraints allow one shape and it meets all bounds."""
    point = point_at(1, settings, checked.sweep, checked.bases)
    if point is None or checked.sweep.solve is None:
        return False
    family = type(point.architecture)
    return all(
        least <= value_of(name, family, point.architecture, point.run)[0] <= most
        for name, (least, most) in bounds_of(checked.sweep.solve).items()
    )


if __name__ == "__main__":
    main()
