"""The order in which microbatches pass the stages of one device, and what lives between passes.

A pass that has been run once is three numbers (`Pass`): all passes like it need as much. Source:
torch 2.13, torch/distributed/pipelining: `stage.py`, `schedules.py`; a function here is named as
that which it follows, and so are the names in it, which hold tensors.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import is_interleaved, is_sharded, stage_index
from modelbudget.operations.tape import Active, Storage

Key = tuple
"""What a pass is, and what its bytes depend on: the pass before, and whether there are gradients.

forward, loss, backward; of shards also unshard, wait_for_unshard, reshard, perform_reduce_grad.
"""
MAX_ACTIVE_STAGES = 3
"""Stages that are gathered ahead (`_add_unshard_reshard`)."""


class Pass(NamedTuple):
    """Bytes of one pass: at its peak and after it, over those live before, and of its result.

    Those of the gradient of an embedding live as long as the output that it leads to.
    """

    peak: Any
    after: Any
    result: Any
    gradient_of_leaf: Any


class Saved(NamedTuple):
    """Bytes that one microbatch saves, and those that all microbatches save once, by component."""

    of_each: Counter[str]
    of_all: Counter[str]


class Stage:
    """A stage, and what it holds between passes (`PipelineStage`)."""

    def __init__(self, passes: Mapping[Key, Pass], saved: Saved, run: RunConfig):
        self.passes, self.saved, self.run_config = passes, saved, run
        self.has_loss, self.is_sharded = ("loss", "", False) in passes, is_sharded(run)
        self.depends_on_order = self.is_sharded or run.gathered_states == "again"
        """What is gathered in a pass may be there in the next, and a buffer for it."""
        self.has_gradients, self.before = False, ""
        self.fwd_cache: dict[int, Storage] = {}
        self.bwd_cache: dict[int, Storage] = {}
        self.output_chunks: list[Storage] = []

    def key(self, name: str) -> Key:
        """Return which pass is the next."""
        before = self.before if self.depends_on_order and name != "loss" else ""
        return name, before, self.has_gradients and name == "backward"

    def done(self, name: str) -> None:
        """Let a pass be the one before the next."""
        self.before = name
        if name == "backward":
            self.has_gradients = True
        elif name == "perform_reduce_grad":
            self.before, self.has_gradients = "", False

    def run(self, name: str) -> Storage:
        """Run a pass; return its result."""
        tape, stage_pass = Active.tape, self.passes[self.key(name)]
        tape.peak = max(tape.peak, tape.live + stage_pass.peak)
        tape.live += stage_pass.after - stage_pass.result - stage_pass.gradient_of_leaf
        if name != "loss":
            self.done(name)
        return Storage(stage_pass.result)

    def forward_one_chunk(self, i: int) -> Storage:
        self.fwd_cache[i] = self.run("forward")
        if self.has_loss and self.run_config.outputs == "kept":
            self.output_chunks.append(self.fwd_cache[i])
        return self.fwd_cache[i]

    def backward_one_chunk(self, i: int) -> None:
        stage_output = self.fwd_cache.pop(i)
        n_bytes = self.passes[self.key("backward")].gradient_of_leaf
        self.bwd_cache[i] = self.run("backward")
        stage_output.resize(stage_output.n_bytes + n_bytes)
        del stage_output

    def get_bwd_send_ops(self, i: int) -> Storage:
        return self.bwd_cache.pop(i)

    def perform_reduce_grad(self) -> None:
        if self.is_sharded:
            self.run("perform_reduce_grad")


class Schedule:
    """The passes of one step of a device (`_PipelineSchedule`)."""

    def __init__(self, stages: list[Stage], run: RunConfig):
        self.stages, self.run_config = stages, run
        self.saved: Counter[str] = Counter()
        """What autograd saves when that is most."""
        self._internal_losses: list[Storage] = []

    def step(self) -> None:
        for stage in self.stages:
            stage.output_chunks.clear()
        if is_interleaved(self.run_config):
            self._interleaved_1f1b()
        elif self.run_config.pipeline_schedule == "gpipe":
            self._gpipe(*self.stages)
        else:
            self._1f1b(*self.stages)
        outputs = self.stages[-1].output_chunks
        if outputs:
            _merged = Storage(sum(output.n_bytes for output in outputs))

    def _maybe_compute_loss(self, stage: Stage) -> None:
        if stage.has_loss:
            self._internal_losses.append(stage.run("loss"))
        self._look()

    def _maybe_get_loss(self, i: int) -> Storage | None:
        return self._internal_losses[i] if self._internal_losses else None

    def _look(self) -> None:
        saved: Counter[str] = Counter()
        for stage in self.stages:
            if n := len(stage.fwd_cache):
                for name, n_bytes in stage.saved.of_each.items():
                    saved[name] += n * n_bytes
                saved.update(stage.saved.of_all)
        if not self.saved or saved.total() > self.saved.total():
            self.saved = saved

    def _gpipe(self, stage: Stage) -> None:
        n_microbatch = self.run_config.n_microbatch
        for i in range(n_microbatch):
            output = stage.forward_one_chunk(i)
            self._maybe_compute_loss(stage)
        loss = ops = None
        for i in range(n_microbatch):
            ops = None
            loss = self._maybe_get_loss(i)
            stage.backward_one_chunk(i)
            ops = stage.get_bwd_send_ops(i)
        self._internal_losses.clear()
        stage.perform_reduce_grad()

    def _1f1b(self, stage: Stage) -> None:
        n_microbatch, run = self.run_config.n_microbatch, self.run_config
        warmup_chunks = min(n_microbatch, run.pipeline_parallel - stage_index(run))
        for fwd_mb_index in range(warmup_chunks):
            output = stage.forward_one_chunk(fwd_mb_index)
            self._maybe_compute_loss(stage)
        for bwd_mb_index in range(n_microbatch):
            loss = self._maybe_get_loss(bwd_mb_index)
            stage.backward_one_chunk(bwd_mb_index)
            bwd_sends = stage.get_bwd_send_ops(bwd_mb_index)
            fwd_mb_index = bwd_mb_index + warmup_chunks
            if fwd_mb_index < n_microbatch:
                output = stage.forward_one_chunk(fwd_mb_index)
                self._maybe_compute_loss(stage)
        self._internal_losses.clear()
        stage.perform_reduce_grad()

    def _interleaved_1f1b(self) -> None:
        operations = list(self._operations())
        active: list[Stage] = []
        for number, (stage, is_forward, i) in enumerate(operations):
            if stage.is_sharded:
                self._unshard(active, [later_stage for later_stage, *_ in operations[number:]])
                if stage.before == "unshard":
                    stage.run("wait_for_unshard")
            if is_forward:
                stage.forward_one_chunk(i)
                self._maybe_compute_loss(stage)
            else:
                stage.backward_one_chunk(i)
                stage.get_bwd_send_ops(i)
                if i == self.run_config.n_microbatch - 1:
                    stage.perform_reduce_grad()
        for stage in active:
            stage.run("reshard")
        self._internal_losses.clear()

    def _unshard(self, active: list[Stage], next_stages: list[Stage]) -> None:
        """Gather the stages that come next, and free others."""
        next_n = list(dict.fromkeys(next_stages))[:MAX_ACTIVE_STAGES]
        for stage in [active_stage for active_stage in active if active_stage not in next_n]:
            stage.run("reshard")
            active.remove(stage)
        for stage in next_n:
            if stage not in active:
                stage.run("unshard")
                active.append(stage)

    def _operations(self) -> Iterator[tuple[Stage, bool, int]]:
        """Yield the passes in turn (`_calculate_single_rank_operations`, `_get_1f1b_rank_ops`)."""
        run, n_stage = self.run_config, len(self.stages)
        size = run.pipeline_parallel
        in_round = run.n_microbatch // max(1, run.n_microbatch // size)
        n_pass = n_stage * run.n_microbatch
        hops = size - 1 - stage_index(run)
        warmup_ops = min((n_stage - 1) * in_round + 2 * hops, n_pass)
        begun: Counter[tuple[int, bool]] = Counter()

        def next_of(turn: int, is_forward: bool) -> tuple[Stage, bool, int]:
            i = begun[turn, is_forward]
            begun[turn, is_forward] += 1
            return self.stages[turn], is_forward, i

        for op in range(warmup_ops + n_pass):
            if op < n_pass:
                yield next_of(op // in_round % n_stage, True)
            if op >= warmup_ops:
                yield next_of(n_stage - 1 - (op - warmup_ops) // in_round % n_stage, False)
