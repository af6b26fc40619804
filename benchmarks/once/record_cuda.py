"""Record the statistics of torch's allocator on a CUDA device.

    python benchmarks/once/record_cuda.py

Writes tests/golden/cuda-DEVICE-torch-VERSION.json. tests/unit/test_cuda.py compares it with the
simulation in modelbudget/memory/caching_allocator.py and with traces on meta. Needs a GPU with
about 8 GB of free memory, and the repository's folder as the working directory.
"""

import json
import re
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.measurement.build import build
from modelbudget.measurement.one_model import measure_one
from modelbudget.measurement.process.cuda import change, refuse_without_cuda, statistics
from modelbudget.measurement.process.device import room
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.quantities import OF_ALLOCATOR
from modelbudget.sweeps.sweep_file import Measure

GOLDEN = Path("tests/golden")
MODELS = ("gpt-2-124m", "gpt-2-355m")
RUNS = [
    {"dtype": "float32", "attention_kernel": "math"},
    {"dtype": "float32", "attention_kernel": "efficient"},
    {"dtype": "float32", "attention_kernel": "math", "optimizer": "momentum", "dropout": True},
    {"dtype": "bfloat16", "attention_kernel": "flash", "master_weights": True},
    {"dtype": "bfloat16", "attention_kernel": "flash", "recompute": "full"},
    {"dtype": "bfloat16", "attention_kernel": "flash", "foreach": True},
]


def main() -> None:
    refuse_without_cuda()
    torch.cuda.init()
    catalogue = Catalogue(Path("configs/models"))
    found = {
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        # Before any matrix product: its workspace would leave free blocks that tensors then reuse.
        "parameters": [parameters(catalogue, name) for name in MODELS],
        "training": [training(catalogue, name, run) for name in MODELS for run in RUNS],
    }
    name = re.sub(r"\W+", "-", f"cuda-{found['device']}-torch-{torch.__version__}").lower()
    GOLDEN.mkdir(exist_ok=True)
    path = GOLDEN / f"{name}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(path)


def parameters(catalogue: Catalogue, name: str) -> dict:
    """Record what a model's parameters take of an empty allocator; sizes in allocation order."""
    torch.cuda.empty_cache()
    before = statistics()
    kept, sizes = [], []
    for parameter in build(named_architecture(catalogue[name]), "meta", "float32").parameters():
        kept.append(torch.empty(parameter.shape, device="cuda"))
        sizes.append(parameter.numel() * parameter.itemsize)
    now, _ = change(before, statistics())
    return {"model": name, "sizes": sizes} | now._asdict()


def training(catalogue: Catalogue, name: str, settings: dict) -> dict:
    """Record what two training steps take, as a sweep measures it."""
    run = RunConfig(**(settings | {"batch": 2, "length": 256}))
    settings = Measure(device="cuda", quantities=sorted(OF_ALLOCATOR))
    measured = measure_one(named_architecture(catalogue[name]), run, settings, room(0.9, 1))
    readings = {quantity: measured.values[quantity] for quantity in settings.quantities}
    return {"model": name, "run": run.model_dump(), "readings": readings}


if __name__ == "__main__":
    main()
