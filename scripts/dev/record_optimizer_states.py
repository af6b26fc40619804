"""Record the bytes of optimizer states: real optimizers after two steps on a CPU, one tensor each.

    python scripts/dev/record_optimizer_states.py [NAME …] > tests/golden/optimizer_states.csv

Needs the libraries that `configs/optimizers/` name, which the project's environment lacks; set
TORCHDYNAMO_DISABLE=1 for those of torchao. Every storage counts once. `rank` is that of galore and
apollo, whose tensor is in a group of its own.
"""

import csv
import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import signature
from typing import Any

import torch

from modelbudget.architecture.optimizers import NAMES, optimizer_named

SHAPES = [
    (128, 512), (1000, 1000), (64, 64), (63, 65), (4096,), (4095,), (512,), (1,), (3, 5, 7),
    (8, 32, 128), (300, 4097),
]  # fmt: skip
SMALL = [(128, 512), (64, 64), (63, 65), (512,), (3, 5, 7)]
"""Of optimizers that compute roots or eigenvectors of each dimension."""
MATRICES = [(128, 512), (64, 64), (63, 65), (300, 4097), (6, 40)]
OF_SHAPES = {
    "shampoo": SMALL,
    "soap": [*SMALL, (1,), (1, 40), (10001, 3)],
    "muon": [*MATRICES, (1000, 1000)],
    "galore": MATRICES,
    "apollo": MATRICES,
}
GROUPS: dict[str, dict[str, Any]] = {
    "galore": {"rank": 8, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"},
    "apollo": {
        "rank": 8, "proj": "random", "scale_type": "channel", "scale": 1, "update_proj_gap": 200,
        "proj_type": "std",
    },
}  # fmt: skip
HOLDERS = ("galore_torch", "apollo_torch")
"""Packages that keep tensors in objects of their own."""


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a state, also inside subclasses, lists and objects."""
    if isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__"):
        flatten: Any = getattr(value, "__tensor_flatten__")  # noqa: B009
        names, _ = flatten()
        yield from tensors([getattr(value, name) for name in names])
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors(one)
    elif type(value).__module__.split(".")[0] in HOLDERS:
        yield from tensors(vars(value))


def n_bytes(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes that an optimizer keeps for one tensor after two steps."""
    optimizer = optimizer_named(name)
    package, _, class_name = str(optimizer.call).rpartition(".")
    call = getattr(import_module(package), class_name)
    p = torch.nn.Parameter(torch.randn(shape).to(dtype))
    group = [{"params": [p], **GROUPS[name]}] if name in GROUPS else [p]
    arguments: dict[str, Any] = dict(optimizer.arguments)
    if "lr" in signature(call).parameters:
        arguments.setdefault("lr", None if "relative_step" in signature(call).parameters else 1e-3)
    made = call(group, **arguments)
    if hasattr(made, "train"):
        made.train()
    for _ in range(2):
        p.grad = torch.randn(shape).to(dtype)
        made.step()
    of_step = {one.untyped_storage()._cdata for one in (p, p.grad) if one is not None}
    storages = {
        one.untyped_storage()._cdata: one.untyped_storage().nbytes()
        for one in tensors(made.state[p])
    }
    return sum(size for key, size in storages.items() if key not in of_step)


def main(names: list[str]) -> None:
    """Print a row for each optimizer, dtype and shape that its library takes."""
    torch.manual_seed(0)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["optimizer", "rank", "dtype", "shape", "bytes"])
    for name in names:
        if optimizer_named(name).call is None:
            continue
        for dtype in (torch.float32, torch.bfloat16):
            for shape in OF_SHAPES.get(name, SHAPES):
                try:
                    found = n_bytes(name, shape, dtype)
                except Exception as error:
                    print(f"# {name} {dtype} {shape}: {error}"[:100], file=sys.stderr)
                    continue
                rank = GROUPS.get(name, {}).get("rank", "")
                shown = "x".join(map(str, shape))
                out.writerow([name, rank, str(dtype).removeprefix("torch."), shown, found])
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:] or list(NAMES))
