"""Work in a process of its own, within seconds and memory: what breaks there breaks alone."""

import multiprocessing
import resource
import traceback
import warnings
from pathlib import Path

from modelbudget.common.errors import InputError

MOST_BYTES = 2**30


def bounded(work, *arguments, seconds: int = 10, method: str = "fork"):
    """'accepted' and the result, 'refused' and the mistakes, or 'broken' and what broke.

    The process may take one GiB more than it has, and `seconds` of the processor. One that uses
    Polars must be spawned: its threads do not live on in a fork.
    """
    context = multiprocessing.get_context(method)
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(there, work, arguments, seconds))
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(6 * seconds) else ("broken", "no answer")
    except EOFError:
        child.join()
        return "broken", f"the process ended with {child.exitcode}"
    finally:
        child.kill()
        child.join()


def _run(answer, work, arguments, seconds: int) -> None:
    warnings.simplefilter("error")
    kilobytes = next(line for line in _status() if line.startswith("VmData:")).split()[1]
    resource.setrlimit(resource.RLIMIT_DATA, (int(kilobytes) * 1024 + MOST_BYTES,) * 2)
    spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    resource.setrlimit(resource.RLIMIT_CPU, (int(spent) + seconds,) * 2)
    try:
        answer.send(("accepted", work(*arguments)))
    except InputError as error:
        answer.send(("refused", error.mistakes))
    except BaseException:
        answer.send(("broken", traceback.format_exc()))


def _status() -> list[str]:
    return Path("/proc/self/status").read_text().splitlines()
