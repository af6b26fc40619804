"""Record what training and inference take on a CUDA device.

    python benchmarks/once/record_cuda.py CASES.yaml OUT.json [SECTION …]

Runs the cases of a file of cuda_cases/ beside it, without a trace: torch chooses its kernels, casts
and frees as it does for anybody. Readings are the allocator's peaks above what was there before the
model (requested by tensors; allocated in blocks; reserved in segments), by phase. Each case says
which blocks were live at the peak of each phase, so that a difference can be explained. All is
written after each row; a case that fails is written with its error.
The page and tests/models/test_recorded_gpu.py compare configs/gpu_recordings.json with predictions.

Run again with the same file, it goes on after the last row: an assertion on the device ends the
process. Needs the package `peft` for its section, and the repository's folder as the working
directory.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import yaml
from torch.nn.attention import SDPBackend

sys.path.insert(0, str(Path(__file__).parents[2]))

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.huggingface.construct import config_object
from modelbudget.measurement.build import build, build_class
from modelbudget.measurement.process.allocator import (
    change,
    context_bytes,
    statistics,
    workspace_bytes,
)
from modelbudget.measurement.step.operations_of_step import (
    ALLOWED,
    DISPATCHED,
    operations_of_device,
)
from modelbudget.measurement.step.train import two_steps
from modelbudget.measurement.trace.inference import infer
from modelbudget.sweeps.derive import resolved
from modelbudget.sweeps.quantity_names import OF_INFERENCE

sys.path.insert(0, str(Path(__file__).parent))

import gpu_attention as attention
from gpu_classes import compiled, fine_tuning, generation, of_class, quantise, trainer
from gpu_step import Meter, at_peak, begin_history, build_on_device, clear, train

CATALOGUE = Catalogue(Path("configs/models"))


def main(cases_path: Path, path: Path, wanted: list[str]) -> None:
    torch.cuda.init()
    readings: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    readings["workspace_bytes"] = workspace_bytes()
    properties = torch.cuda.get_device_properties(0)
    readings |= {
        "device": properties.name,
        "total_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "context_bytes": context_bytes(),
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        },
    }
    cases = yaml.safe_load(cases_path.read_text())
    sections: dict[str, Callable] = {
        "parameters": lambda n: [parameters(name) for name in ("gpt-2-124m", "gpt-2-355m")][n:],
        "attention": lambda n: islice(attention.calls(), n, None),
        "attention_blocks": lambda n: islice(attention.blocks(), n, None),
    }
    of_cases = {
        "training": training, "classes": of_class(training), "peft": of_class(fine_tuning),
        "trainer": of_class(trainer), "compiled": of_class(compiled), "inference": inference,
        "class_inference": of_class(inference), "generation": of_class(generation),
        "traces": traces, "fits": largest_batch,
        "quantised_inference": of_class(partial(inference, is_quantised=True)),
    }  # fmt: skip
    sections["every_class"] = lambda n: read_classes(cases["every_class"][n:])
    for name in of_cases.keys() & cases.keys():
        read = of_cases[name]
        sections[name] = lambda n, name=name, read=read: read_all(cases[name], read, n)
    for name in wanted or ["parameters", "attention", "attention_blocks", *cases]:
        start, rows = time.monotonic(), readings.setdefault(name, [])
        for row in sections[name](len(rows)):
            rows.append(row)
            path.write_text(json.dumps(readings) + "\n")
            if "AcceleratorError" in str(row)[-2000:]:
                sys.exit(1)
        print(name, f"{time.monotonic() - start:.1f} s", flush=True)


def read_all(cases: list[dict], read: Callable, n_read: int) -> Iterator[dict]:
    """Read every run of every case but the first `n_read`; what one raises is its reading."""
    for case in cases:
        for of_run in case["runs"]:
            if (n_read := n_read - 1) >= 0:
                continue
            settings = dict(case["settings"] | of_run)
            segments = settings.pop("expandable_segments", False)
            has_cudnn = settings.pop("cudnn", False)
            clear()
            torch.cuda.memory._set_allocator_settings(f"expandable_segments:{segments}")
            start = time.monotonic()
            row = {"base": case["base"], "settings": settings}
            row |= {"expandable_segments": True} if segments else {}
            row |= {"cudnn": True} if has_cudnn else {}
            allowed = {"flash": [SDPBackend.CUDNN_ATTENTION, *DISPATCHED]} if has_cudnn else {}
            try:
                with patch.dict(ALLOWED, allowed):
                    row |= read(CATALOGUE[case["base"]], dict(settings))
            except Exception as error:  # such as no memory
                row["error"] = f"{type(error).__name__}: {error}"[:500]
                traceback.print_exc(limit=-3)
            row["seconds"] = round(time.monotonic() - start, 2)
            result = row.get("error", row.get("largest", ""))
            print(row["base"], settings, result, row["seconds"], flush=True)
            yield row


def training(base: Base, settings: dict, kind: str | None = None) -> dict:
    """Read two training steps, then time two more."""
    a, run = resolved(base, settings)
    return train(lambda: build_on_device(a, run, kind), run)


def inference(
    base: Base, settings: dict, kind: str | None = None, is_quantised: bool = False
) -> dict:
    """Read a prefill and a decoded token, with their caches."""
    a, run = resolved(base, settings)
    plain = run.model_copy(update={"weights": "dtype"}) if is_quantised else run
    meter = Meter(statistics())
    begin_history()
    model = build_on_device(a, plain, kind).eval()
    if is_quantised:
        quantise(model, run)
        clear()
        begin_history()
    trace: Any = meter
    values = infer(model, plain, OF_INFERENCE, trace, operations_of_device)
    live = at_peak(meter.ends)
    return {
        "run": run.model_dump(), "peaks": meter.peaks, "at_peak": live,
        "cache_bytes": sum(values["cache_bytes"].values()),
    }  # fmt: skip


def read_classes(cases: list[dict]) -> Iterator[dict]:
    """Read two training steps, a prefill and a token of classes with configs that no model has."""
    for case in cases:
        kind, config = case["class"], case["config"]
        row: dict[str, Any] = {"class": kind, "config": config}
        run = RunConfig(**case["settings"])
        start = time.monotonic()
        for name, read in {"training": class_training, "inference": class_inference}.items():
            clear()
            try:
                row[name] = read(kind, config, run)
            except Exception as error:  # such as a kernel that the device lacks
                row[f"{name}_error"] = f"{type(error).__name__}: {error}"[:500]
        row["seconds"] = round(time.monotonic() - start, 2)
        errors = row.get("training_error"), row.get("inference_error")
        print(kind, row["seconds"], *errors, flush=True)
        yield row


def class_training(kind: str, config: dict, run: RunConfig) -> dict:
    return train(lambda: build_class(kind, config_object(kind, config), run, "cuda"), run)


def class_inference(kind: str, config: dict, run: RunConfig) -> dict:
    trace: Any = Meter(statistics())
    model = build_class(kind, config_object(kind, config), run, "cuda").eval()
    values = infer(model, run, OF_INFERENCE, trace, operations_of_device)
    return {"peaks": trace.peaks, "cache_bytes": sum(values["cache_bytes"].values())}


def traces(base: Base, settings: dict) -> dict:
    """Trace a model's training and inference on the device, and on meta, and list what differs."""
    from modelbudget.measurement.one_model import measure_one
    from modelbudget.measurement.process.device import Room
    from modelbudget.sweeps.sweep_file import Measure

    a, run = resolved(base, settings)
    values, missing = {}, {}
    quantities = ["activation_bytes", "flops_forward", "flops_backward", "peak_training_bytes"]
    quantities += ["optimizer_bytes", "peak_inference_bytes", "cache_bytes"]
    for device in ("cuda", "meta"):
        asked = Measure(device=device, quantities=quantities)
        room = Room(2**36, 2**36)
        measured = measure_one(a, run, asked, room)
        values[device] = measured.values
        missing[device] = measured.missing
    differing = {
        quantity: {
            name: [of_device.get(name), values["meta"][quantity].get(name)]
            for name in of_device
            if of_device.get(name) != values["meta"][quantity].get(name)
        }
        for quantity, of_device in values["cuda"].items()
    }
    n_equal = sum(map(len, values["cuda"].values())) - sum(map(len, differing.values()))
    return {
        "n_equal": n_equal,
        "differing": {k: v for k, v in differing.items() if v},
        "missing": missing,
    }


def largest_batch(base: Base, settings: dict) -> dict:
    """Read the largest batch of which two training steps do not run out of memory."""
    fits, too_large = 0, None
    batch, peaks, run = settings.pop("start"), {}, None
    while too_large is None or too_large - fits > max(1, fits // 100):
        try:
            clear()
            meter = Meter(statistics())
            a, run = resolved(base, settings | {"batch": batch})
            model = build_on_device(a, run, None)
            for phase in two_steps(model, run):
                meter.read(phase)
            fits, peaks = batch, meter.peaks
        except torch.cuda.OutOfMemoryError:
            too_large = batch
        model = None
        more = max(1, fits // 25)
        batch = fits + more if too_large is None else (fits + too_large) // 2
        if not fits and too_large is not None:
            batch = too_large - max(1, too_large // 25)
    assert run is not None
    return {"run": run.model_dump(), "largest": fits, "too_large": too_large, "peaks": peaks}


def parameters(name: str) -> dict:
    """Read what a model's parameters take of an empty allocator; sizes in allocation order."""
    from modelbudget.sweeps.derive import named_architecture

    clear()
    before = statistics()
    kept, sizes = [], []
    for parameter in build(named_architecture(CATALOGUE[name]), "meta", "float32").parameters():
        kept.append(torch.empty(parameter.shape, device="cuda"))
        sizes.append(parameter.numel() * parameter.itemsize)
    now, _ = change(before, statistics())
    return {"model": name, "sizes": sizes} | now._asdict()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
