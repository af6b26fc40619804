"""What GPUs took in training, fine-tuning and inference, against predictions, byte by byte.

Recorded by benchmarks/once/record_cuda.py. Only these readings see a difference between a GPU and
what stands in for one on a CPU: traces, emulated autocast, rules of kernels read from source.
"""

import math
from functools import cache

import pytest
import torch
from helpers.catalogue import CATALOGUE
from helpers.tiers import some

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import of_model
from modelbudget.catalogue.memory_margins import memory_margins
from modelbudget.compare import recorded_peaks
from modelbudget.compare.recorded_peaks import TRAINING, peaks, recorded
from modelbudget.measurement import build as build_of_class
from modelbudget.measurement.build import build
from modelbudget.measurement.one_model import measure_one
from modelbudget.measurement.process.device import Room
from modelbudget.measurement.reference.class_trace import trace_class
from modelbudget.measurement.step.module_settings import arrange
from modelbudget.measurement.trace.attention_dispatch import (
    WIDEST,
    Call,
    takes_efficient,
    takes_flash,
)
from modelbudget.memory.caching_allocator import Layout, layout
from modelbudget.modules.initialise import uninitialised
from modelbudget.predict.prediction_or_reason import predicted
from modelbudget.sweeps.class_config import class_config
from modelbudget.sweeps.derive import resolved
from modelbudget.sweeps.quantity_names import OF_ALLOCATOR, OF_DEVICE
from modelbudget.sweeps.sweep_file import Measure

RECORDED = recorded()


def of(section: str) -> list:
    rows = [row for row in RECORDED[section] if "error" not in row]
    return some(rows, 4)


def name_of(row: dict) -> str:
    return f"{row['base']} {' '.join(map(str, row['settings'].values()))}"


def run_of(row: dict, of_class: bool):
    return recorded_peaks.run_of(CATALOGUE[row["base"]], row, of_class)


@cache
def n_trained(a, run: RunConfig) -> int:
    """Number of tensors that get a gradient."""
    with uninitialised():
        model = build(a, "meta", run.dtype)
    arrange(model, run)
    named = model.named_parameters()
    of_no_loss = "pooler", "next_sentence"  # of BERT's second task
    return sum(p.requires_grad and not name.startswith(of_no_loss) for name, p in named)


@pytest.mark.parametrize(
    ("section", "row"),
    [(name, row) for name in TRAINING for row in of(name)],
    ids=lambda value: name_of(value) if isinstance(value, dict) else value,
)
def test_a_step_requests_what_is_predicted(section, row):
    """Of our modules, of classes of transformers, of these with PEFT, and of these by Trainer."""
    run = peaks(row, section, CATALOGUE)
    assert all(map(run.is_equal, run.requested)) is not bool(run.reason), run
    if section != "trainer":
        assert row["trained_tensors"] == n_trained(*run_of(row, section != "training"))


@pytest.mark.parametrize("row", RECORDED["paged"], ids=name_of)
def test_a_paged_optimizer_keeps_states_where_the_allocator_does_not_look(row):
    """In managed memory: moments of tensors of 100,000 numbers or more. The rest is predicted."""
    a, run = run_of(row, of_class=False)
    of_moments = 2 if run.optimizer.endswith("8bit") else 8
    with uninitialised():
        sizes = [parameter.numel() for parameter in build(a, "meta", run.dtype).parameters()]
    paged = of_moments * sum(size for size in sizes if size >= 100_000)
    phase = "second.forward_backward"
    peak = predicted("peak_training_bytes", a, run)[phase].total
    assert row["peaks"][phase][0] + paged == peak


@pytest.mark.parametrize("row", of("inference"), ids=name_of)
def test_inference_requests_what_is_predicted(row):
    """But for partial results of a flash kernel that divides long keys of one new token."""
    a, run = run_of(row, of_class=False)
    of_phases = predicted("peak_inference_bytes", a, run)
    assert row["peaks"]["prefill"][0] == of_phases["prefill"].total
    assert 0 <= row["peaks"]["decode"][0] - of_phases["decode"].total < 2**18
    cache = sum(term.total for term in predicted("cache_bytes", a, run).values())
    assert row["cache_bytes"] == cache


@pytest.mark.parametrize("row", of("class_inference"), ids=name_of)
def test_inference_of_a_class_requests_what_is_traced(row):
    a, run = run_of(row, of_class=True)
    kind = CATALOGUE[row["base"]].transformers
    traced = trace_class(kind, class_config(kind, a), run, {"peak_inference_bytes"})
    of_phases = traced.values["peak_inference_bytes"]
    are_equal = {phase: row["peaks"][phase][0] for phase in of_phases} == of_phases
    assert are_equal is ("differs" not in row)


@pytest.mark.parametrize("row", of("quantised_inference"), ids=name_of)
def test_inference_of_quantised_classes_requests_what_is_predicted_more(row):
    """Than the same class in bfloat16, parameters apart, as the same of our modules.

    Tokens of one step of up to four sequences: a step of more makes copies of matrices, which are
    not at the class's peak.
    """
    base = CATALOGUE[row["base"]]
    kind, plain = base.transformers, row["settings"] | {"weights": "dtype"}
    a, run = run_of({"base": row["base"], "settings": plain}, of_class=True)
    traced = trace_class(kind, class_config(kind, a), run, {"peak_inference_bytes"})
    of_class = traced.values["peak_inference_bytes"]
    ours, quantised = beside_parameters(a, run), beside_parameters(*run_of(row, of_class=True))
    for phase in ("prefill", "decode") if run.batch <= 4 else ("prefill",):
        read = row["peaks"][phase][0] - row["peaks"]["setup"][0]
        more = quantised[phase] - ours[phase]
        assert read - (of_class[phase] - of_class["setup"]) == more, phase


def beside_parameters(a, run: RunConfig) -> dict[str, int]:
    """Peaks of our modules' inference by phase, less the bytes of parameters."""
    resident = sum(term.total for term in predicted("parameter_bytes", a, run).values())
    of_phases = predicted("peak_inference_bytes", a, run)
    return {phase: term.total - resident for phase, term in of_phases.items()}


@pytest.mark.parametrize("row", some(RECORDED["every_class"], 12), ids=lambda row: row["class"])
def test_a_class_requests_what_is_traced_of_it(row, monkeypatch):
    """Of 118 classes with their own defaults, two to eight layers, 256 tokens.

    But for workspaces of convolutions and the kernels that `differs` names. They were built in the
    dtype, where a class that is loaded keeps some tensors in float32.
    """
    monkeypatch.setattr(build_of_class, "keep_in_float32", lambda *_: None)
    settings = {"batch": 1, "length": 256, "dtype": "bfloat16", "attention_kernel": "flash"}
    run = RunConfig(backend="gpu", **settings)
    quantities = {"peak_training_bytes", "peak_inference_bytes"}
    traced = trace_class(row["class"], row["config"], run, quantities).values
    differing = []
    if "training" in row:
        counts = 4 * row["training"]["trained_tensors"]
        for phase, n_bytes in traced.get("peak_training_bytes", {}).items():
            if n_bytes - row["training"]["peaks"][phase][0] not in (0, counts):
                differing.append(phase)
    for phase, n_bytes in traced.get("peak_inference_bytes", {}).items():
        if "inference" in row and n_bytes != row["inference"]["peaks"][phase][0]:
            differing.append(phase)
    assert bool(differing) is ("differs" in row), differing


@pytest.mark.parametrize("row", of("generation"), ids=name_of)
def test_generation_peaks_at_its_prompt(row):
    """The cache that grows by concatenation included: `generate` needs at most 1 % more than it."""
    a, run = run_of(row, of_class=True)
    kind = CATALOGUE[row["base"]].transformers
    traced = trace_class(kind, class_config(kind, a), run, {"peak_inference_bytes"})
    prompt = traced.values["peak_inference_bytes"]["prefill"]
    assert prompt <= row["peaks"]["generate"][0] <= 1.01 * prompt


@pytest.mark.parametrize("row", RECORDED["training"][:20:6], ids=name_of)
def test_blocks_and_segments_are_those_of_the_simulated_allocator(row):
    """Of the first runs of the process; later ones find segments that earlier ones have left."""
    a, run = run_of(row, of_class=False)
    asked = Measure(device="meta", quantities=sorted(OF_ALLOCATOR - OF_DEVICE))
    simulated = measure_one(a, run, asked, Room(0, 0)).simulated
    for phase, (_, allocated, reserved) in row["peaks"].items():
        assert allocated == pytest.approx(simulated["peak_allocated_bytes"][phase], rel=0.01)
        assert reserved == pytest.approx(simulated["peak_reserved_bytes"][phase], rel=0.005)


def test_parameters_lie_as_recorded():
    for model in RECORDED["parameters"]:
        recorded = Layout(model["requested"], model["allocated"], model["reserved"])
        assert layout(model["sizes"]) == recorded, model["model"]


def test_attention_runs_the_kernel_of_the_rules():
    """448 calls. With cuDNN, torch prefers that for all in 16 bits with heads of 8·n channels."""
    for dtype, width, mode, has_cudnn, kernel in RECORDED["attention"]:
        is_cudnn = has_cudnn and dtype.endswith("16") and width % 8 == 0 and width <= WIDEST
        assert kernel == ("cudnn" if is_cudnn else rule(dtype, width, mode)), (dtype, width, mode)


def rule(dtype: str, width: int, mode: str) -> str:
    """Return the kernel of a call as benchmarks/once/record_cuda.py makes it."""
    of_keys = 2, 2 if mode == "grouped" else 4, 128
    make = {"dtype": getattr(torch, dtype), "device": "meta"}
    q = torch.empty(2, 4, 1 if mode == "decode" else 128, width, **make)
    k = torch.empty(*of_keys, width, **make)
    v = torch.empty(*of_keys, width // 2 if mode == "value" else width, **make)
    mask = torch.empty(128, 128, dtype=torch.bool, device="meta") if mode == "mask" else None
    is_causal, is_grouped = mode not in ("none", "mask", "decode"), mode == "grouped"
    call = Call(q, k, v, mask, is_causal=is_causal, enable_gqa=is_grouped)
    return "flash" if takes_flash(call) else "efficient" if takes_efficient(call) else "math"


@pytest.mark.parametrize("expandable", [False, True])
def test_the_margins_are_what_did_not_suffice(expandable):
    """Memory that was not enough for a batch, over the bytes of its tensors, rounded up."""
    margins = memory_margins()
    margins = margins.with_expandable_segments() if expandable else margins
    ratios = []
    for row in RECORDED["fits"]:
        device = RECORDED["devices"][row.get("device", "H100")]
        memory = device["total_bytes"]
        taken = device["context_bytes"] + device["workspace_bytes"]
        assert taken < margins.reserve.bytes
        if "too_large" in row and row.get("expandable_segments", False) == expandable:
            base = CATALOGUE[row["base"]]
            a, run = resolved(base, row["settings"] | {"batch": row["too_large"]})
            peak = of_model("peak_training_bytes", predicted("peak_training_bytes", a, run))
            assert margins.grade(peak, memory) != "fits", row
            ratios.append((memory - taken) / peak)
    assert margins.worst_ratio.value == math.ceil(100 * max(ratios)) / 100
