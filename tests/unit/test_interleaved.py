"""The order in which a device's stages take turns, against torch's own order of passes."""

from itertools import product
from types import SimpleNamespace

import pytest
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B, _add_unshard_reshard

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import stage_index
from modelbudget.devices.pipeline_schedules import Schedule, Stage
from modelbudget.quantities import pipelined_step


def test_passes_are_in_torchs_order():
    """Traces see few pipelines: here are 1,200, with more stages than are gathered ahead."""
    n = 0
    ranks = "first", "second", "middle", "last"
    for devices, stages, microbatches, rank in product(
        range(3, 9), range(2, 7), range(1, 21), ranks
    ):
        if microbatches % max(1, microbatches // devices):
            continue
        run = RunConfig.model_construct(
            pipeline_parallel=devices, virtual_stages=stages, n_microbatch=microbatches,
            pipeline_rank=rank, pipeline_schedule="interleaved_1f1b",
        )  # fmt: skip
        assert _order(run) == _torchs_order(run), run
        n += 1
    assert n > 1200


class Recorded(Stage):
    """A stage that writes down what it runs."""

    def __init__(self, index: int, order: list):
        self.index, self.order, self.is_sharded, self.before = index, order, True, ""

    def run(self, name: str):
        self.order.append((self.index, name))

    def forward_one_chunk(self, i: int):
        self.order.append((self.index, "forward", i))

    def backward_one_chunk(self, i: int) -> None:
        self.order.append((self.index, "backward", i))

    def get_bwd_send_ops(self, i: int):
        pass

    def perform_reduce_grad(self) -> None:
        pass


def _order(run: RunConfig) -> list[tuple]:
    order = []
    indices = range(
        stage_index(run), run.pipeline_parallel * run.virtual_stages, run.pipeline_parallel
    )
    schedule = Schedule([Recorded(index, order) for index in indices], run)
    schedule._maybe_compute_loss = lambda stage: None
    schedule._interleaved_1f1b()
    return order


def _torchs_order(run: RunConfig) -> list[tuple]:
    n_round = max(1, run.n_microbatch // run.pipeline_parallel)
    schedule = SimpleNamespace(
        n_local_stages=run.virtual_stages,
        pp_group_size=run.pipeline_parallel,
        microbatches_per_round=run.n_microbatch // n_round,
        _n_microbatches=run.n_microbatch,
    )
    actions = ScheduleInterleaved1F1B._calculate_single_rank_operations(schedule, stage_index(run))
    names = {"FORWARD": "forward", "FULL_BACKWARD": "backward", "UNSHARD": "unshard"}
    order = []
    for one in _add_unshard_reshard(actions):
        name = names.get(one.computation_type.name, "reshard")
        index = one.microbatch_index
        order.append((one.stage_index, name) if index is None else (one.stage_index, name, index))
    return order


@pytest.mark.parametrize(
    ("zero", "every"), [(0, pipelined_step.PASSES), (3, pipelined_step.PASSES_OF_SHARDS)]
)
def test_passes_of_one_microbatch_are_as_those_of_all_kinds(zero, every, monkeypatch):
    """One microbatch has fewer passes than there are kinds; each kind needs as much there."""
    a = mb.model("gpt-2-124m", n_layer=8).architecture
    run = RunConfig(
        batch=1, n_microbatch=1, length=8, zero=zero, data_parallel=2, pipeline_parallel=2,
        pipeline_schedule="gpipe",
    )  # fmt: skip
    step = pipelined_step.pipelined_step(a, run)
    assert len(pipelined_step._letters_of(run)) < len(every)
    monkeypatch.setattr(pipelined_step, "_letters_of", lambda run: every)
    assert pipelined_step.pipelined_step(a, run) == step
