"""Parameter counts of four models by seven tools, and models per second.

    python benchmarks/other_tools.py docs/other-tools.md

Needs benchmarks/requirements.txt, which `make bench` installs in a separate environment. Each tool
goes from a config to a count, as its documentation shows for models without storage. It counts the
class of transformers, or our module if transformers has no class. All tools run in turn in one
process, so quote the ratios: a slow machine slows all of them.
"""

import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

import accelerate
import torch
import torchinfo
from accelerate.utils import compute_module_sizes
from fvcore.nn import parameter_count
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType

from modelbudget.architecture.terms import total
from modelbudget.catalogue.models import Base, Catalogue
from modelbudget.huggingface.offline import transformers
from modelbudget.huggingface.translate import config_of
from modelbudget.measurement.build import build
from modelbudget.measurement.count import count
from modelbudget.modules.initialise import uninitialised
from modelbudget.sweeps.derive import named_architecture

MODELS = Path(__file__).parent.parent / "configs" / "models"
NAMES = ("gpt-2-124m", "llama-3-8b", "mixtral-8x7b", "palm-540b")
ROUNDS = 5
FLOAT32 = 4
META = torch.device("meta")
Tool = Callable[[Base], int]


def made(base: Base) -> nn.Module:
    """Build the class of transformers, or our module if there is none."""
    architecture = named_architecture(base)
    if base.transformers is None:
        return architecture.build()
    kind = getattr(transformers, base.transformers)
    return kind(kind.config_class(**config_of(base.transformers, architecture)))


def on_meta(base: Base) -> nn.Module:
    with META:
        return made(base)


def plain_torch(base: Base) -> int:
    return sum(parameter.numel() for parameter in on_meta(base).parameters())


def by_transformers(base: Base) -> int:
    if base.transformers is None:
        raise LookupError("has no such class")
    return on_meta(base).num_parameters()


def by_accelerate(base: Base) -> int:
    with accelerate.init_empty_weights():
        model = made(base)
    if base.transformers is not None:
        model.tie_weights()  # its context has cut the ties
    return compute_module_sizes(model)[""] // FLOAT32


def by_torchinfo(base: Base) -> int:
    return torchinfo.summary(on_meta(base), verbose=0).total_params


def by_fvcore(base: Base) -> int:
    return parameter_count(on_meta(base))[""]


def by_mem_tracker(base: Base) -> int:
    model, tracker = on_meta(base), MemTracker()
    tracker.track_external(model)
    with tracker:
        pass  # it counts external modules when it is entered
    return tracker.get_tracker_snapshot()[META][_MemRefType.PARAM] // FLOAT32


def measured(base: Base) -> int:
    """Count by component, which no other tool does, without initial values."""
    with uninitialised():
        model = build(named_architecture(base), "meta", "float32")
    return sum(part.parameters for part in count(model).values())


def predicted(base: Base) -> int:
    a = named_architecture(base)
    return total(a.parameters(a))


TOOLS: dict[str, Tool] = {
    "plain torch": plain_torch,
    f"transformers {version('transformers')}": by_transformers,
    f"accelerate {version('accelerate')}": by_accelerate,
    f"torchinfo {version('torchinfo')}": by_torchinfo,
    f"fvcore {version('fvcore')}": by_fvcore,
    f"MemTracker of torch {version('torch')}": by_mem_tracker,
    "modelbudget, measured": measured,
    "modelbudget, predicted": predicted,
}


def rows_of(base: Base) -> Iterable[tuple[str, str, str, float | None]]:
    """Yield for each tool its name, its count, whether that is right, and its seconds."""
    truth = base.model.exact or base.model.independent
    for name, tool in TOOLS.items():
        try:
            found = tool(base)
            seconds = statistics.median(timed(tool, base) for _ in range(ROUNDS))
        except LookupError as error:  # a tool that cannot count the model is a result too
            yield name, "none", str(error).splitlines()[0], None
        else:
            difference = found - truth
            verdict = f"{difference:+,}" if difference else "right"
            yield name, f"{found:,}", verdict, seconds


def timed(tool: Tool, base: Base) -> float:
    start = time.perf_counter()
    tool(base)
    return time.perf_counter() - start


def tables() -> Iterable[str]:
    catalogue = Catalogue(MODELS)
    for name in NAMES:
        base = catalogue[name]
        kind = f"`{base.transformers}`" if base.transformers else "our module"
        rows = list(rows_of(base))
        floor = next(seconds for tool, *_, seconds in rows if tool == "plain torch")
        yield f"## {base.label}, {kind}\n"
        yield "| tool | count | | models/s | × plain torch |"
        yield "| --- | --: | --- | --: | --: |"
        for tool, found, verdict, seconds in rows:
            speed = f"{1 / seconds:,.1f} | {floor / seconds:,.1f}" if seconds else "|"
            yield f"| {tool} | {found} | {verdict} | {speed} |"
        yield ""


def main(path: str) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    machine = f"{platform.machine()}, {torch.get_num_threads()} cores, Python"
    text = [
        "# Parameter counts by other tools\n",
        "From a config to a count, without storage; written by `make bench`. A count is right if "
        "it equals a published exact count of the model, or for PaLM an independent closed form "
        "(`exact` and `independent` in `configs/models`). Counts that are too high include tied "
        "matrices twice, or buffers. Speeds are "
        f"medians of {ROUNDS} on one machine ({machine} {platform.python_version()}), measured in "
        "turn; only their ratios carry over to other machines.\n",
        *tables(),
    ]
    Path(path).write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main(*sys.argv[1:])
