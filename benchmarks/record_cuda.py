"""Record what torch's allocator says on a CUDA device: `python benchmarks/record_cuda.py`.

Writes tests/golden/cuda-DEVICE-torch-VERSION.json, which tests/test_cuda.py holds against the
arithmetic of modelbudget/caching_allocator.py and against traces on meta. Needs a GPU, some 8 GB of
it free, and the repository's folder as the working directory.
"""

import json
import re
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from modelbudget.catalogue import Catalogue
from modelbudget.expand import named_architecture
from modelbudget.measure.build import build
from modelbudget.measure.cuda import (
    change,
    context_bytes,
    refuse_without_cuda,
    statistics,
    workspace_bytes,
)
from modelbudget.measure.train import two_steps
from modelbudget.run import Run

GOLDEN = Path("tests/golden")
MODELS = ("gpt-2-124m", "gpt-2-355m")
RUN = {"batch": 2, "length": 256}


def main() -> None:
    refuse_without_cuda()
    torch.cuda.init()
    catalogue = Catalogue(Path("configs/models"))
    found = {
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        # Before any product: its workspace would leave holes for tensors to fill.
        "parameters": [parameters(catalogue, name) for name in MODELS],
        "workspace": workspace_bytes(),
        "training": [training(catalogue, name) for name in MODELS],
        "context": context_bytes(),
    }
    name = re.sub(r"\W+", "-", f"cuda-{found['device']}-torch-{torch.__version__}").lower()
    GOLDEN.mkdir(exist_ok=True)
    path = GOLDEN / f"{name}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(path)


def parameters(catalogue: Catalogue, name: str) -> dict:
    """What a model's parameters take of an empty allocator; sizes in the order of allocation."""
    torch.cuda.empty_cache()
    before = statistics()
    kept, sizes = [], []
    for parameter in build(named_architecture(catalogue[name]), "meta", "float32").parameters():
        kept.append(torch.empty(parameter.shape, device="cuda"))
        sizes.append(parameter.numel() * parameter.itemsize)
    return {"model": name, "sizes": sizes} | change(before, statistics())


def training(catalogue: Catalogue, name: str) -> dict:
    """What two steps of training take at most, the model included."""
    torch.cuda.empty_cache()
    before = statistics()
    run = Run(**RUN)
    two_steps(build(named_architecture(catalogue[name]), "cuda", run.dtype), run)
    return {"model": name, "run": RUN} | change(before, statistics())


if __name__ == "__main__":
    main()
