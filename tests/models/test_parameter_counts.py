"""Counting real modules: who owns a tensor, which device it is on, how many bytes it takes."""

import pytest
import torch
from helpers.strategies import architectures, decoders
from helpers.tiers import examples
from hypothesis import given, settings
from torch import nn

from modelbudget.architecture.terms import component_of
from modelbudget.measurement.build import build
from modelbudget.measurement.count import count
from modelbudget.measurement.one_model import measure_one
from modelbudget.measurement.process.device import Room, choose
from modelbudget.measurement.process.measure_in_processes import measure_all
from modelbudget.sweeps.sweep_file import Measure

AMPLE = Room(cpu=10**9, cuda=0)
CPU = Measure(device="cpu")


def parts(model: nn.Module) -> dict[str, int]:
    return {name: part.parameters for name, part in count(model).items()}


@given(architectures)
@settings(max_examples=examples(300))
def test_formulas_equal_modules_component_by_component(architecture):
    predicted = {n: t.total for n, t in type(architecture).parameters(architecture).items()}
    measured = parts(build(architecture, "meta", "float32"))
    assert {n: v for n, v in measured.items() if v} == {n: v for n, v in predicted.items() if v}


@given(architectures)
@settings(max_examples=examples(50))
def test_components_are_the_paths_that_torch_names(architecture):
    model = nn.ModuleDict({"model": build(architecture, "meta", "float32")})
    model["list"] = nn.ParameterList([torch.empty(2), torch.empty(3)])
    paths = [path for path, _ in model.named_parameters(remove_duplicate=False)]
    assert list(count(model)) == list(dict.fromkeys(map(component_of, paths)))
    assert count(model)["list"].parameters == 5


@given(decoders())
@settings(max_examples=examples(50))
def test_meta_and_cpu_hold_the_same(architecture):
    meta = count(build(architecture, "meta", "bfloat16"))
    cpu = count(build(architecture, "cpu", "bfloat16"))
    assert meta == cpu
    for part in cpu.values():
        assert part.parameter_bytes == 2 * part.parameters


@pytest.mark.parametrize("device", ["cpu", "meta"])
class TestSharing:
    def test_one_parameter_under_two_names(self, device):
        model = nn.ModuleDict({"words": nn.Embedding(7, 3), "head": nn.Linear(3, 7, bias=False)})
        model["head"].weight = model["words"].weight
        counts = count(model.to(device) if device == "cpu" else retie(model))
        assert counts["words"].parameters == 21
        assert counts["head"].parameters == counts["head"].parameter_bytes == 0
        assert counts["head"].shared_with == "words"

    def test_equal_shapes_are_not_sharing(self, device):
        with torch.device(device):
            model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
        assert parts(model) == {"a": 20, "b": 20}

    def test_two_parameters_over_one_storage(self, device):
        with torch.device(device):
            model = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4)})
        model["b"].weight = nn.Parameter(model["a"].weight.detach())
        assert model["b"].weight is not model["a"].weight
        counts = count(model)
        assert counts["b"].parameters == 4
        assert counts["b"].shared_with == "a"

    def test_views_of_one_packed_storage_are_parameters_of_their_own(self, device):
        packed = torch.empty(3, 4, 4, device=device)
        model = nn.ParameterDict({"qkv"[i]: nn.Parameter(packed[i]) for i in range(3)})
        counts = count(model)
        assert sum(part.parameters for part in counts.values()) == 48
        assert sum(part.parameter_bytes for part in counts.values()) == 48 * 4


def retie(model: nn.ModuleDict) -> nn.ModuleDict:
    """`.to("meta")` breaks ties without a word; this is the model that was meant."""
    model.to("meta")
    model["head"].weight = model["words"].weight
    return model


def test_auto_takes_the_first_device_with_room():
    assert choose("auto", 100, Room(cpu=100, cuda=100)) == "cuda"
    assert choose("auto", 100, Room(cpu=100, cuda=99)) == "cpu"
    assert choose("auto", 101, Room(cpu=100, cuda=99)) == "meta"


def test_a_device_asked_for_by_name_is_refused_without_room(catalogue):
    with pytest.raises(MemoryError, match=r"needs 101 bytes on cpu, where 100 may be used"):
        choose("cpu", 101, Room(cpu=100, cuda=0))


def test_a_pool_keeps_the_order_and_equals_one_process(sweep):
    points = sweep(
        "base: gpt-2-124m\nfixed: {n_head: 1}\ngrid: {d_model: {from: 2, to: 40, steps: 20}}"
    ).points
    models = [(point.architecture, point.run) for point in points]
    pooled = measure_all(models, CPU, 2)
    alone = [measure_one(*model, CPU, AMPLE) for model in models]
    assert pooled == alone
