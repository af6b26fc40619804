"""Training steps of a model that devices share, by real processes that communicate with gloo."""

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel import rank as distributed
from modelbudget.modules.feed_forward.moe import Router
from modelbudget.modules.initialise import initialise

OfRank = Callable[[Decoder, RunConfig], Any]
QUANTITIES = {"gradient_bytes", "optimizer_bytes", "activation_bytes", "peak_training_bytes"}


def steps_of_all_ranks(a: Decoder, run: RunConfig, folder: Path) -> list[dict]:
    """Return what each rank has measured, from one process for each."""
    return of_all_ranks(_measured, a, run, folder)


def of_all_ranks(of_rank: OfRank, a: Decoder, run: RunConfig, folder: Path) -> list:
    """Return what a function of model and run returns on each rank, from one process for each.

    An error of one of them is raised here: the others would wait for it forever.
    """
    context = torch.multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    arguments = (of_rank, a, run, str(folder / "store"), results)
    ranks = range(distributed.world(run))
    processes = [context.Process(target=_put, args=(i, *arguments)) for i in ranks]
    for process in processes:
        process.start()
    found = {}
    while len(found) < len(processes):
        rank, found[rank] = results.get()
        if isinstance(found[rank], str):
            for process in processes:
                process.kill()
            raise AssertionError(f"rank {rank}: {found[rank]}")
    for process in processes:
        process.join()
    return [found[i] for i in ranks]


class _Released(TorchDispatchMode):
    """Give gloo's thread the time to free a tensor of a collective that is done."""

    done = False
    collectives = (
        torch.ops._c10d_functional.wait_tensor.default,
        torch.ops.c10d.allreduce_.default,
        torch.ops.c10d._allgather_base_.default,
        torch.ops.c10d._reduce_scatter_base_.default,
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor | AsyncCollectiveTensor) for kind in types):
            return NotImplemented
        if self.done:
            time.sleep(0.002)
        self.done = func in self.collectives
        return func(*args, **(kwargs or {}))


def _put(rank: int, of_rank: OfRank, a: Decoder, run: RunConfig, store: str, results) -> None:
    torch.set_num_threads(1)
    world = distributed.world(run)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        found = of_rank(a, run)
        dist.barrier()
        dist.destroy_process_group()
        results.put((rank, found))
    except Exception:
        results.put((rank, traceback.format_exc()))


def _measured(a: Decoder, run: RunConfig) -> dict:
    model = build(a, "cpu", distributed.dtype_of_parameters(run))
    initialise(model)
    route(model, run)
    mesh = distributed.mesh_of(run)
    model = distributed.distribute(model, run, mesh)
    with _Released():
        return distributed.traced(model, a, run, QUANTITIES, mesh)


def route(model: nn.Module, run: RunConfig) -> None:
    """Let all tokens go to the same experts: to the first ones, or to every other one.

    Routers without a bias choose as they are initialised.
    """
    for router in model.modules():
        if isinstance(router, Router) and router.bias is not None:
            step = 1 if run.routing == "one_device" else 2
            nn.init.zeros_(router.bias)
            router.bias.data[::step][: router.n_expert_per_token] = 100.0
