"""The peak of a device whose stages take turns, against torch's own order of passes."""

import random
from types import SimpleNamespace

import pytest
from helpers.readings import of_graph, sizes, words
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

from modelbudget.architecture.evaluators import graph
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import stage_index
from modelbudget.architecture.terms import total
from modelbudget.families.decoder import Decoder
from modelbudget.memory import interleaved
from modelbudget.memory.pipeline_stages import Passes, Stage, backward_levels
from modelbudget.memory.timeline import Allocation

SIZES = (0, 1, 10, 100, 1000)


def test_the_peak_is_that_of_all_passes_in_torchs_order():
    """Sizes decide where in the order the peak is: they are random, and so is the pipeline."""
    draw, n = random.Random(0), 0
    for _ in range(2000):
        devices, stages = draw.randint(2, 6), draw.randint(2, 5)
        microbatches = draw.randint(1, 6 * devices)
        if microbatches % max(1, microbatches // devices):
            continue
        names = ["first", "last"] + ["second", "middle"] * (devices > 2)
        run = SimpleNamespace(
            pipeline_parallel=devices,
            virtual_stages=stages,
            n_microbatch=microbatches,
            pipeline_rank=draw.choice(names),
            outputs="freed",
        )
        device = _random_device(draw, run.pipeline_rank)
        assert interleaved.forward_backward(device, run, 0) == _peak(device, run), (run, device)
        n += 1
    assert n > 500


@pytest.mark.parametrize("rank", ["first", "middle", "last"])
def test_what_is_saved_is_the_same_in_a_graph(rank):
    """Whole rounds are a quotient, rounded down."""
    a = Decoder(n_vocab=11, d_model=8, n_layer=6, n_head=2, n_kv_head=2, d_head=4, d_ff=16, n_ctx=4)
    of_pipeline = {"pipeline_schedule": "interleaved_1f1b", "pipeline_rank": rank}
    run = RunConfig(
        batch=6, n_microbatch=6, pipeline_parallel=3, virtual_stages=2, length=4, **of_pipeline
    )
    namespaces = [graph.namespace(type(record), words(record)) for record in (a, run)]
    found = of_graph(total(a.activation_bytes(*namespaces)), sizes(a) | sizes(run))
    assert found == total(a.activation_bytes(a, run))


def _random_device(draw: random.Random, rank: str) -> interleaved.Device:
    def size() -> int:
        return draw.choice(SIZES) * draw.randint(0, 9)

    def stage(waiting: int, left: int, gradients: int, forward: list) -> Stage:
        first, again = (
            Passes([Allocation("", more + n, more + waiting - left)], [], [], [])
            for more, n in ((size(), gradients), (size(), 0))
        )
        return Stage(1, forward, [], first, again, waiting, left, 0, 0)

    gradients, of_end, waiting, more, left, forward = (size() for _ in range(6))
    plain = stage(waiting, 0, gradients, [forward])
    if rank == "first":
        end = stage(waiting + more, 0, gradients + of_end, [forward])
    elif rank == "last":
        # A pass through the last stage's layers needs as much as one through another stage's.
        end = stage(
            waiting + more, left := min(left, more), gradients + of_end, [forward - more, size()]
        )
    else:
        end, of_end = plain, 0
    return interleaved.Device(end, gradients + of_end, plain, gradients)


def _peak(device: interleaved.Device, run) -> int:
    """Return the most bytes live in all passes of one device."""
    live, levels, begun = 0, [0], set()
    ends = {"first": 0, "last": run.pipeline_parallel * run.virtual_stages - 1}
    for index, is_forward in _torchs_order(run):
        of_end = index == ends.get(run.pipeline_rank)
        stage = device.end if of_end else device.plain
        if is_forward:
            live += stage.waiting
            levels += [live, *(live + more for more in stage.forward)]
        else:
            found = backward_levels(stage.again if index in begun else stage.backward, 1, live)
            begun.add(index)
            live = found[-1]
            levels += found
    return max(levels)


def _torchs_order(run) -> list[tuple[int, bool]]:
    """Return the index of the stage of each pass, and whether it is forward."""
    n_round = max(1, run.n_microbatch // run.pipeline_parallel)
    schedule = SimpleNamespace(
        n_local_stages=run.virtual_stages,
        pp_group_size=run.pipeline_parallel,
        microbatches_per_round=run.n_microbatch // n_round,
        _n_microbatches=run.n_microbatch,
    )
    order = ScheduleInterleaved1F1B._calculate_single_rank_operations
    found = [one for one in order(schedule, stage_index(run)) if one is not None]
    return [(one.stage_index, one.computation_type.name == "FORWARD") for one in found]
