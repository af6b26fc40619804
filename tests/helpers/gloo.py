"""Training steps of a model that devices share, by real processes that communicate with gloo."""

import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel import rank as distributed
from modelbudget.modules.initialise import initialise

QUANTITIES = {"gradient_bytes", "optimizer_bytes", "activation_bytes", "peak_training_bytes"}


def steps_of_all_ranks(a: Decoder, run: RunConfig, folder: Path) -> list[dict]:
    """Return what each rank has measured, from one process for each.

    An error of one of them is raised here: the others would wait for it forever.
    """
    context = torch.multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    of_rank = (a, run, str(folder / "store"), results)
    ranks = range(distributed.world(run))
    processes = [context.Process(target=_steps, args=(i, *of_rank)) for i in ranks]
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
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor | AsyncCollectiveTensor) for kind in types):
            return NotImplemented
        if self.done:
            time.sleep(0.002)
        self.done = func in self.collectives
        return func(*args, **(kwargs or {}))


def _steps(rank: int, a: Decoder, run: RunConfig, store: str, results) -> None:
    try:
        results.put((rank, _measured(rank, a, run, store)))
    except Exception:
        results.put((rank, traceback.format_exc()))


def _measured(rank: int, a: Decoder, run: RunConfig, store: str) -> dict:
    torch.set_num_threads(1)
    world = distributed.world(run)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    model = build(a, "cpu", distributed.dtype_of_parameters(run))
    initialise(model)
    mesh = distributed.mesh_of(run)
    distributed.distribute(model, run, mesh)
    with _Released():
        found = distributed.traced(model, a, run, QUANTITIES, mesh)
    dist.barrier()
    dist.destroy_process_group()
    return found
