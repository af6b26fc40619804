"""Available memory, and which limit (machine, cgroup, job, ulimit) sets it."""

import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Limit:
    """Bytes allowed in total, and those that are free."""

    name: str
    total: int
    free: int


def limits(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> list[Limit]:
    """Return all limits of this process. `root` contains `proc` and `sys`."""
    memory = psutil.virtual_memory()
    machine = Limit("this machine's memory", memory.total, memory.available)
    return [machine, *control_groups(root), *address_space(), *slurm_job(environ)]


def control_groups(root: Path) -> Iterator[Limit]:
    """Yield the limits of this process's control group and of its parents.

    They belong to a container, a service or a job (cgroups(7);
    https://docs.kernel.org/admin-guide/cgroup-v2.html, "Memory Interface Files", and
    cgroup-v1/memory.html). The page cache is reclaimed when memory is short, so it counts as free.
    """
    ours = root / "proc/self/cgroup"
    for line in ours.read_text().splitlines() if ours.exists() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folder, names = "", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            folder = "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Inside a container its own group is the root; the path may exist on the host only.
        inside = root / "sys/fs/cgroup" / folder / path.strip("/")
        yield from (_group(group, *names) for group in _with_limit(inside, root, names[0]))


def _with_limit(inside: Path, root: Path, name: str) -> Iterator[Path]:
    for group in (inside, *inside.parents):
        if group == root:
            return
        if (group / name).exists() and (group / name).read_text().strip() != "max":
            yield group


def _group(group: Path, limit: str, usage: str, cached: str) -> Limit:
    total, used = (int((group / name).read_text()) for name in (limit, usage))
    statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    free = max(0, total - used + int(statistics[cached]))
    return Limit(f"the container's or job's limit (cgroup {limit})", total, free)


def address_space() -> Iterator[Limit]:
    """Yield the limit of the shell or the queue for each process (getrlimit(2))."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:
        free = max(0, allowed - psutil.Process().memory_info().vms)
        yield Limit("the address space of a process (ulimit -v)", allowed, free)


def slurm_job(environ: Mapping[str, str]) -> Iterator[Limit]:
    """Yield the memory that a Slurm job has requested on this node.

    See sbatch(1), "Output environment variables". If no control group enforces it, Slurm kills the
    job later, or other jobs run out of memory.
    """
    if job := environ.get("SLURM_JOB_ID"):
        every = (process.info for process in psutil.process_iter(["environ", "memory_info"]))
        ours = [
            process for process in every if (process["environ"] or {}).get("SLURM_JOB_ID") == job
        ]
        # The steps that Snakemake starts lack these variables; the job's script has them.
        of_steps = max((_asked(process["environ"]) for process in ours), default=0)
        if total := _asked(environ) or of_steps:
            used = sum(process["memory_info"].rss for process in ours)
            yield Limit("what the Slurm job asked for (--mem)", total, max(0, total - used))


def _asked(environ: Mapping[str, str]) -> int:
    """Return requested bytes; 0 for the whole node and if nothing is set."""
    of_node, of_cpu, cpus = (
        int(environ.get(name, 0))
        for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE")
    )
    return (of_node or of_cpu * cpus) * 2**20
