"""Record what training and inference take on a CUDA device.

    python benchmarks/once/record_cuda.py OUT.json [SECTION …]

Runs the cases of cuda_cases.yaml beside it, without a trace: torch chooses its kernels, casts and
frees as it does for anybody. Readings are the allocator's peaks above what was there before the
model (requested by tensors; allocated in blocks; reserved in segments), by phase. Each case says
which blocks were live at the peak of each phase, so that a difference can be explained. All is
written after each row; a case that fails is written with its error.
The page and tests/models/test_recorded_gpu.py compare configs/h100_readings.json with predictions.

Needs the package `peft` for its section, and the repository's folder as the working directory.
"""

import gc
import json
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.catalogue.named_models import Base, Catalogue
from modelbudget.huggingface.construct import config_object
from modelbudget.measurement.build import build, build_class
from modelbudget.measurement.process.cuda import change, context_bytes, statistics, workspace_bytes
from modelbudget.measurement.step.operations_of_step import operations_of_device
from modelbudget.measurement.step.train import two_steps
from modelbudget.measurement.trace.inference import infer
from modelbudget.modules.initialise import initialise, uninitialised
from modelbudget.sweeps.class_config import class_config
from modelbudget.sweeps.derive import resolved
from modelbudget.sweeps.quantity_names import OF_INFERENCE

CASES = Path(__file__).with_name("cuda_cases.yaml")
CATALOGUE = Catalogue(Path("configs/models"))
KERNELS = ("flash", "efficient", "cudnn")
MAKERS = ("modelbudget/", "transformers/", "peft/", "torch/optim/", "torch/nn/", "torch/")
"""Parts of the path of a file whose line is the maker of a block, best first."""


class Meter:
    """Stands where a trace stands, and reads the allocator instead."""

    def __init__(self, before: dict[str, int]):
        self.before, self.peak = before, 0
        self.peaks: dict[str, list[int]] = {}
        self.ends: dict[str, float] = {}
        self.flops: defaultdict[str, Counter[str]] = defaultdict(Counter)

    @contextmanager
    def watching(self, phase: str) -> Iterator[None]:
        statistics()
        yield
        self.read(phase)

    def read(self, phase: str) -> None:
        _, peak = change(self.before, statistics())
        self.peak, self.peaks[phase] = peak.requested, list(peak)
        self.ends[phase] = time.time() * 1e6


def main(path: Path, wanted: list[str]) -> None:
    torch.cuda.init()
    readings: dict[str, Any] = {"workspace_bytes": workspace_bytes()}
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
    cases = yaml.safe_load(CASES.read_text())
    sections: dict[str, Callable] = {
        "parameters": lambda: [parameters(name) for name in ("gpt-2-124m", "gpt-2-355m")],
        "attention": attention_calls,
    }
    of_cases = {
        "training": training, "classes": of_class(training), "peft": of_class(fine_tuning),
        "inference": inference, "class_inference": of_class(inference), "fits": largest_batch,
    }  # fmt: skip
    for name, read in of_cases.items():
        sections[name] = lambda name=name, read=read: read_all(cases[name], read)
    for name in wanted or sections:
        start, readings[name] = time.monotonic(), []
        for row in sections[name]():
            readings[name].append(row)
            path.write_text(json.dumps(readings) + "\n")
        print(name, f"{time.monotonic() - start:.1f} s", flush=True)


def read_all(cases: list[dict], read: Callable) -> Iterator[dict]:
    """Read every run of every case; what one raises is its reading."""
    for case in cases:
        for of_run in case["runs"]:
            settings = case["settings"] | of_run
            segments = settings.pop("expandable_segments", False)
            _clear()
            torch.cuda.memory._set_allocator_settings(f"expandable_segments:{segments}")
            start = time.monotonic()
            row = {"base": case["base"], "settings": settings}
            row |= {"expandable_segments": True} if segments else {}
            try:
                row |= read(CATALOGUE[case["base"]], dict(settings))
            except Exception as error:  # such as no memory
                row["error"] = f"{type(error).__name__}: {error}"[:500]
                traceback.print_exc(limit=-3)
            row["seconds"] = round(time.monotonic() - start, 2)
            result = row.get("error", row.get("largest", ""))
            print(row["base"], settings, result, row["seconds"], flush=True)
            yield row


def _begin_history() -> None:
    history = {"context": "alloc", "stacks": "python", "max_entries": 10**7}
    torch.cuda.memory._record_memory_history("all", **history)


def _clear() -> None:
    torch.cuda.memory._record_memory_history(enabled=None)
    gc.collect()
    torch.cuda.empty_cache()


def of_class(read: Callable) -> Callable:
    """Return a reader of a model as its class computes it, with the settings of the class."""

    def reads(base: Base, settings: dict) -> dict:
        of_class = dict(implementations()[TRANSFORMERS].of_class(base.transformers))
        return read(base, of_class | settings, base.transformers)

    return reads


def training(base: Base, settings: dict, kind: str | None = None) -> dict:
    """Read two training steps, then time two more."""
    a, run = resolved(base, settings)
    return _train(lambda: _model(a, run, kind), run)


def fine_tuning(base: Base, settings: dict, kind: str) -> dict:
    """Read two training steps of a class with the adapters of PEFT."""
    import peft

    a, run = resolved(base, settings)
    plain = run.model_copy(update={"adapter": "none"})

    def wrapped():
        model: Any = _model(a, plain, kind)
        roles = {"query": "q_proj", "value": "v_proj"}
        targets: Any = [roles.get(name, name) for name in run.adapter_targets.split()]
        targets = "all-linear" if run.adapter_targets == "all-linear" else targets
        config = peft.LoraConfig(r=run.adapter_rank, target_modules=targets, lora_dropout=0.0)
        if run.input_gradient:
            model.enable_input_require_grads()
        made = peft.get_peft_model(model, config)
        return made.base_model.model

    return _train(wrapped, plain)


def _model(a: Architecture, run: RunConfig, kind: str | None) -> torch.nn.Module:
    if kind is not None:
        return build_class(kind, config_object(kind, class_config(kind, a)), run, "cuda")
    with uninitialised():
        model = build(a, "cuda", run.dtype)
    initialise(model)
    return model


def _train(make: Callable[[], torch.nn.Module], run: RunConfig) -> dict:
    meter = Meter(statistics())
    torch.cuda.memory._record_memory_history(
        "all", context="alloc", stacks="python", max_entries=10**7
    )
    model, trained = make(), set()
    for phase in two_steps(model, run):
        meter.read(phase)
        if phase == "first.forward_backward":
            note_gradients(model, trained)
    live = at_peak(meter.ends)
    del model
    _clear()
    times, start = [], time.monotonic()
    for _ in two_steps(make(), run):
        torch.cuda.synchronize()
        times.append(time.monotonic() - start)
    step_ms = round(1000 * (times[3] - times[1]), 2)
    return {
        "run": run.model_dump(), "peaks": meter.peaks, "step_ms": step_ms, "at_peak": live,
        "trained_tensors": len(trained),
    }  # fmt: skip


def note_gradients(model: torch.nn.Module, trained: set[str]) -> None:
    """Add the name of each parameter that gets a gradient from now on, also one freed at once."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: trained.add(name))


def at_peak(ends: dict[str, float]) -> dict[str, list[list]]:
    """Return [bytes, number, line] of the blocks that were live at the peak of each phase.

    `ends`: microseconds since the epoch. A line is the innermost one of the maker known best.
    """
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    live: dict[int, tuple] = {}
    of_phases: dict[str, list[list]] = {}
    now, i = 0, 0
    for phase, end in ends.items():
        first, before, best, n_best = i, dict(live), now, -1
        while i < len(events) and events[i]["time_us"] <= end:
            now += _apply(events[i], live)
            if now > best:
                best, n_best = now, i
            i += 1
        for event in events[first : n_best + 1]:
            _apply(event, before)
        counts = Counter((size, _line(event.get("frames", ()))) for size, event in before.values())
        of_phases[phase] = [[*key, n] for key, n in sorted(counts.items(), reverse=True)[:40]]
    return of_phases


def _apply(event: dict, live: dict[int, tuple]) -> int:
    """Apply an event to the live blocks; return the bytes that it adds."""
    if event["action"] == "alloc":
        live[event["addr"]] = event["size"], event
        return event["size"]
    if event["action"] == "free_requested" and event["addr"] in live:
        return -live.pop(event["addr"])[0]
    return 0


def _line(frames) -> str:
    for maker in MAKERS:
        for frame in frames:
            if maker in frame["filename"]:
                file = "/".join(frame["filename"].split("/")[-2:])
                return f"{file}:{frame['line']} {frame['name']}"
    return ""


def inference(base: Base, settings: dict, kind: str | None = None) -> dict:
    """Read a prefill and a decoded token, with their caches."""
    a, run = resolved(base, settings)
    meter = Meter(statistics())
    torch.cuda.memory._record_memory_history(
        "all", context="alloc", stacks="python", max_entries=10**7
    )
    model = _model(a, run, kind).eval()
    trace: Any = meter
    values = infer(model, run, OF_INFERENCE, trace, operations_of_device)
    live = at_peak(meter.ends)
    return {
        "run": run.model_dump(), "peaks": meter.peaks, "at_peak": live,
        "cache_bytes": sum(values["cache_bytes"].values()),
    }  # fmt: skip


def largest_batch(base: Base, settings: dict) -> dict:
    """Read the largest batch of which two training steps do not run out of memory."""
    fits, too_large = 0, None
    batch, peaks, run = settings.pop("start"), {}, None
    while too_large is None or too_large - fits > max(1, fits // 100):
        try:
            _clear()
            meter = Meter(statistics())
            a, run = resolved(base, settings | {"batch": batch})
            model = _model(a, run, None)
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


def attention_calls() -> list[dict]:
    """Read which kernel torch runs for calls of attention, with all kernels and without cuDNN."""
    return [
        _call(dtype, width, mode, cudnn)
        for dtype in ("float32", "bfloat16", "float16", "float64")
        for width in (32, 60, 64, 80, 128, 192, 256, 320)
        for mode in ("causal", "none", "mask", "grouped", "value", "dropout", "decode")
        for cudnn in (True, False)
    ]


def _call(dtype: str, width: int, mode: str, cudnn: bool) -> dict:
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    make = {"dtype": getattr(torch, dtype), "device": "cuda"}
    n_kv, d_value = (2 if mode == "grouped" else 4), (width // 2 if mode == "value" else width)
    n_query = 1 if mode == "decode" else 128
    q = torch.randn(2, 4, n_query, width, **make, requires_grad=True)
    k = torch.randn(2, n_kv, 128, width, **make, requires_grad=True)
    v = torch.randn(2, n_kv, 128, d_value, **make, requires_grad=True)
    arguments: dict[str, Any] = {"is_causal": mode not in ("none", "mask", "decode")}
    if mode == "mask":
        arguments["attn_mask"] = torch.ones(n_query, 128, dtype=torch.bool, device="cuda").tril()
    arguments |= {"enable_gqa": True} if mode == "grouped" else {}
    arguments |= {"dropout_p": 0.1} if mode == "dropout" else {}
    row = {"dtype": dtype, "width": width, "mode": mode, "cudnn": cudnn}
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, **arguments)
        names = {event.name for event in profiler.events()}
        row["kernel"] = next(
            (
                kernel
                for kernel in KERNELS
                if f"aten::_scaled_dot_product_{kernel}_attention" in names
            ),
            "math",
        )
        out.sum().backward()
    except RuntimeError as error:
        row["error"] = str(error)[:200]
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
    return row


def parameters(name: str) -> dict:
    """Read what a model's parameters take of an empty allocator; sizes in allocation order."""
    from modelbudget.sweeps.derive import named_architecture

    _clear()
    before = statistics()
    kept, sizes = [], []
    for parameter in build(named_architecture(CATALOGUE[name]), "meta", "float32").parameters():
        kept.append(torch.empty(parameter.shape, device="cuda"))
        sizes.append(parameter.numel() * parameter.itemsize)
    now, _ = change(before, statistics())
    return {"model": name, "sizes": sizes} | now._asdict()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
