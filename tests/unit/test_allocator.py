"""Bytes that an allocator hands out in training, read from a real one: the CPU's."""

import pytest
from helpers.tiers import some

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.one_model import measure_one
from modelbudget.measurement.process.device import Room
from modelbudget.measurement.process.measure_in_processes import measure_all
from modelbudget.predict.formula import formula
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.sweep_file import Measure

ENOUGH = Room(cpu=2**33, cuda=0)
SMALL = {"n_layer": 3, "d_model": 128, "n_vocab": 1000, "n_head": 4, "d_head": 32, "d_ff": 512}
GPT_2 = SMALL | {"n_kv_head": 4, "n_ctx": 128}
LLAMA = SMALL | {"n_kv_head": 2}
SCALAR = 12
"""Bytes of a number that an operation of a CPU takes, once as it comes and once in the dtype of
the tensors (float32)."""
GENERATOR = 5056
"""Bytes of the CPU's generator of random numbers, kept wherever something is computed again."""


def read_from(device: str, architecture, run: RunConfig) -> dict[str, int]:
    quantities = Measure(device=device, quantities=["peak_requested_bytes", "peak_training_bytes"])
    return measure_one(architecture, run, quantities, ENOUGH).values


MODELS = [
    ("gpt-2-124m", GPT_2),
    ("llama-3-8b", LLAMA),
    ("mixtral-8x7b", LLAMA | {"d_expert": 256}),
    ("palm-8b", SMALL | {"n_kv_head": 1}),
]
SETTINGS = [
    {},
    {"attention_kernel": "flash"},
    {"optimizer": "sgd"},
    {"optimizer": "momentum", "foreach": True},
    {"dropout": True},
    {"recompute": "selective"},
    {"recompute": "full"},
]


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_a_real_allocator_hands_out_what_is_predicted_and_traced(catalogue, number):
    """No mode of torch's dispatcher is on: autograd sums gradients up in place wherever it may."""
    for name, sizes in some(MODELS, 2, number):
        _is_what_is_predicted(catalogue, name, sizes, SETTINGS[number])


def _is_what_is_predicted(catalogue, name: str, sizes: dict, settings: dict) -> None:
    published = named_architecture(catalogue[name])
    a = type(published)(**(published.model_dump() | sizes))
    run = RunConfig(batch=2, length=64, backend="cpu", **settings)
    found = read_from("cpu", a, run)["peak_requested_bytes"]
    assert found.keys() == read_from("meta", a, run)["peak_requested_bytes"].keys()
    generators = GENERATOR * a.n_layer if run.recompute != "none" else 0
    terms, _ = formula(type(a), "peak_requested_bytes", a, run)  # by a program, where that is
    for phase, term in terms.items():
        assert 0 <= found[phase] - term.total <= SCALAR + generators, phase
        assert (found[phase] - term.total) % GENERATOR in (0, 4, 8, SCALAR), phase


def test_without_storage_the_caching_allocator_is_simulated(catalogue):
    a, run = named_architecture(catalogue["gpt-2-124m"]), RunConfig(batch=1, length=128)
    names = [f"peak_{kind}_bytes" for kind in ("requested", "allocated", "reserved")]
    settings = Measure(device="meta", quantities=["peak_training_bytes", *names])
    found = measure_one(a, run, settings, Room(0, 0))
    requested = found.values["peak_requested_bytes"]
    assert requested == found.values["peak_training_bytes"]
    assert not {*names[1:]} & found.values.keys()
    allocated, reserved = (found.simulated[name] for name in names[1:])
    for phase in requested:
        assert requested[phase] <= allocated[phase] <= reserved[phase]
        assert allocated[phase] % 512 == reserved[phase] % 2**21 == 0
        assert allocated[phase] < 1.01 * requested[phase]


def test_without_cuda_each_quantity_is_missing(sweep):
    points = sweep(
        "base: gpt-2-124m\ngrid: {batch: [1]}\n"
        "measure: {device: cuda, quantities: [peak_reserved_bytes, context_bytes]}"
    ).points
    settings = Measure(device="cuda", quantities=["peak_reserved_bytes", "context_bytes"])
    (failed,) = measure_all([(points[0].architecture, points[0].run)], settings, 1)
    assert set(failed.missing) == set(settings.quantities)
