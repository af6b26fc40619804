"""What one device holds where several divide the routed experts, with shards of what they have and
without: formulas against torch's all-to-all and FSDP2 on a fake process group, and that against
processes that communicate.
"""

import random

import polars as pl
import pytest
import torch
from helpers.devices import COMPARED, compared, measured, predicted, programmed
from helpers.gloo import of_all_ranks, steps_of_all_ranks
from helpers.readings import in_first_row
from helpers.tiers import seeds

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel import rank as distributed
from modelbudget.modules.initialise import initialise
from modelbudget.predict.layout_search import LAYOUT, layouts
from modelbudget.predict.predict import predict
from modelbudget.sweeps.derive import named_architecture

SMALL = {"n_vocab": 64, "d_model": 36, "n_layer": 2, "n_head": 2, "n_kv_head": 2, "d_head": 16}
SMALL |= {"d_ff": 100, "position": "rotary", "gated": True, "mlps": "moe", "d_expert": 24}
FOUR = SMALL | {"n_expert": 4, "n_expert_per_token": 2, "router_bias": "logit"}


def random_device(seed: int) -> tuple[Decoder, RunConfig]:
    """Return a small decoder with experts, and a run of devices that divide them."""
    draw = random.Random(seed)
    devices = draw.choice([2, 3, 4, 8])
    n_expert, d_shared = devices * draw.choice([1, 2, 5]), draw.choice([0, 0, 6])
    shape = {
        "n_vocab": draw.choice([4, 64, 1000]), "d_model": draw.choice([2, 16, 36]),
        "tied": draw.random() < 0.5, "gated": draw.random() < 0.5, "n_expert": n_expert,
        "n_expert_per_token": draw.randint(1, min(n_expert, 6)), "d_shared": d_shared,
        "d_expert": draw.choice([1, 5, 24, 200]),
        "shared_gate": d_shared > 0 and draw.random() < 0.5,
        "mlps": draw.choice(["moe", "moe mlp"]), "up_bias": draw.random() < 0.3,
        "router_bias": draw.choice(["none", "logit", "selection"]),
    }  # fmt: skip
    run = {
        "expert_parallel": devices, "routing": draw.choice(["even", "one_device"]), "batch": 4,
        "length": draw.choice([1, 8, 32]), "recompute": draw.choice(["none", "full", "selective"]),
        "dropout": draw.random() < 0.2, "optimizer": draw.choice(["adamw", "momentum"]),
    }  # fmt: skip
    if seed % 3 == 0:
        run |= {"dtype": "bfloat16", "master_weights": True, "gradient_casts": "accumulated"}
    if seed % 5 == 0:
        shape["mlps"] = "moe"
        run |= {"pipeline_parallel": 2, "pipeline_schedule": "1f1b", "n_microbatch": 4}
    return Decoder(**SMALL | shape), RunConfig(**run)


@pytest.mark.parametrize("seed", seeds(15))
def test_random_devices_are_predicted(seed):
    a, run = random_device(seed)
    assert run_mistake(a, run) is None
    formulas, values = predicted(a, run), measured(a, run)
    assert run.dropout or "peak_training_bytes" in formulas
    assert formulas.items() <= values.items(), run
    if run.pipeline_parallel == 1:
        assert programmed(a, run) == values, run


@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_parallel": 2, "sequence_parallel": True},
        {"expert_parallel": 2, "zero": 3},
        {"pipeline_parallel": 2, "pipeline_schedule": "1f1b", "n_microbatch": 4},
    ],
)
def test_a_norm_of_the_experts_result(settings):
    """A.X K1 has one, and no other norm after a part."""
    more = {"moe_output_norm": True, "router_bias": "none", "n_dense_layer": 1, "n_layer": 4}
    a, run = Decoder(**FOUR | more | {"d_shared": 6}), RunConfig(batch=4, length=8, **settings)
    values = measured(a, run)
    assert programmed(a, run) == values
    assert predicted(a, run).items() <= values.items()


def random_shards(seed: int) -> tuple[Decoder, RunConfig]:
    """Return a small decoder with experts, and a run of devices that divide and shard them."""
    a, run = random_device(seed)
    draw = random.Random(seed)
    biases = {"router_bias": draw.choice(["none", "logit"]), "down_bias": draw.random() < 0.3}
    shape = biases | {"mlps": "moe", "n_layer": 4, "norm": draw.choice(["layernorm", "rmsnorm"])}
    sharded = {"zero": draw.choice([2, 3]), "data_parallel": draw.choice([1, 2, 3, 5])}
    sharded |= {"data_rank": draw.choice(["first", "last"]), "gradient_casts": "together"}
    if run.dtype == "bfloat16":
        sharded |= {"master_weights": draw.random() < 0.7}
        # The gradients of stages have a formula where they are added up in their dtype.
        exact = not run.pipeline_parallel > 1 and draw.random() < 0.7
        sharded |= {"reduce_dtype": "float32" if exact else "dtype"}
    if run.pipeline_parallel > 1:
        sharded |= {"zero": 2, "recompute": "none"}
    return a.model_copy(update=shape), run.model_copy(update=sharded)


@pytest.mark.parametrize("seed", seeds(10))
def test_random_shards_are_predicted(seed):
    a, run = random_shards(seed)
    assert run_mistake(a, run) is None
    formulas, values = predicted(a, run), measured(a, run)
    assert formulas == {quantity: values[quantity] for quantity in formulas}, run
    assert programmed(a, run) == values, run


@pytest.mark.parametrize("zero", [2, 3])
def test_shards_of_layers_with_and_without_experts(zero):
    """Only here: parts with one group of parameters beside parts with two, which a program has."""
    a = Decoder(**FOUR | {"mlps": "moe mlp", "n_layer": 5})
    run = RunConfig(batch=2, length=8, expert_parallel=2, data_parallel=zero - 1, zero=zero)
    assert not a.has_formula_for("peak_training_bytes", a, run)
    assert programmed(a, run) == measured(a, run)


@pytest.mark.parametrize("routing", ["even", "one_device"])
def test_published_models(catalogue, routing):
    for name, devices in (("mixtral-8x7b", 8), ("deepseek-v2-lite", 16), ("qwen-3-30b-a3b", 64)):
        a = named_architecture(catalogue[name]).model_copy(update={"n_layer": 3})
        run = RunConfig(dtype="bfloat16", expert_parallel=devices, routing=routing, length=512)
        assert predicted(a, run) == measured(a, run), name


def test_published_models_with_shards(catalogue):
    for name, devices in (("mixtral-8x7b", 8), ("qwen-3-30b-a3b", 16)):
        a = named_architecture(catalogue[name]).model_copy(update={"n_layer": 3})
        settings = {"dtype": "bfloat16", "master_weights": True, "reduce_dtype": "float32"}
        run = RunConfig(expert_parallel=devices, zero=3, length=512, recompute="full", **settings)
        for data in (1, 4):
            of_mesh = run.model_copy(update={"data_parallel": data})
            assert programmed(a, of_mesh) == measured(a, of_mesh), (name, data)


@pytest.mark.parametrize(("devices", "d_expert"), [(2, 64), (4, 400)])
def test_shards_of_devices_that_divide_matrices_too(devices, d_expert):
    """Here a closed formula gave too little."""
    heads = {"n_head": 4, "n_kv_head": 4, "d_head": 8, "d_model": 32, "n_layer": 4}
    a = Decoder(**FOUR | heads | {"d_expert": d_expert, "n_expert": 8, "norm": "rmsnorm"})
    of_mesh = {"tensor_parallel": devices, "expert_parallel": 2, "data_parallel": 2}
    run = RunConfig(batch=1, length=64, zero=2, sequence_parallel=True, **of_mesh)
    assert "peak_training_bytes" not in predicted(a, run)
    assert programmed(a, run) == measured(a, run)


def test_devices_have_all_experts_and_compute_all_rows():
    a = Decoder(**FOUR | {"n_expert_per_token": 1})
    alone, even, busiest = (
        predicted(a, RunConfig(batch=2, length=8, expert_parallel=n, routing=routing))
        for n, routing in ((1, "even"), (4, "even"), (4, "one_device"))
    )
    name = "layer.moe.up"
    assert 4 * even["parameter_bytes"][name] == alone["parameter_bytes"][name]
    assert even["flops_forward"] == alone["flops_forward"]
    assert busiest["flops_forward"][name] == 4 * alone["flops_forward"][name]


@pytest.mark.parametrize("routing", ["even", "one_device"])
def test_processes_that_communicate_hold_the_same(tmp_path, routing):
    a = Decoder(**FOUR)
    run = RunConfig(batch=2, length=16, backend="cpu", expert_parallel=2, routing=routing)
    first, second = (compared(found) for found in steps_of_all_ranks(a, run, tmp_path))
    assert first == measured(a, run)
    assert (second == first) == (routing == "even")


@pytest.mark.parametrize("data", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_shards_of_processes_that_communicate(tmp_path, data):
    a = Decoder(**FOUR)
    run = RunConfig(batch=2, length=16, backend="cpu", expert_parallel=2, zero=3)
    run = run.model_copy(update={"data_parallel": data})
    first, *_, last = steps_of_all_ranks(a, run, tmp_path)
    for name, found in (("first", first), ("last", last)):
        expected = run.model_copy(update={"data_rank": name})
        assert compared(found) == measured(a, expected), name


@pytest.mark.parametrize("data", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_gradients_of_shards_are_means_over_all_devices(tmp_path, data):
    a = Decoder(**FOUR | {"router_bias": "none"})
    run = RunConfig(batch=2, length=16, backend="cpu", expert_parallel=2, zero=3)
    run = run.model_copy(update={"data_parallel": data})
    for difference in of_all_ranks(_largest_difference_of_means, a, run, tmp_path):
        assert difference < 1e-5


def _largest_difference_of_means(a: Decoder, run: RunConfig) -> float:
    """Compare gradients of shards with the mean of those of whole models, one on each device."""
    model = build(a, "cpu", "float32")
    torch.manual_seed(0)
    initialise(model)
    mesh = distributed.mesh_of(run)
    generator = torch.Generator().manual_seed(mesh.get_rank())
    tokens = torch.randint(a.n_vocab, (run.batch, run.length), generator=generator)
    model(tokens).square().sum().backward()
    whole = {}
    for name, parameter in model.named_parameters():
        torch.distributed.all_reduce(parameter.grad)
        whole[name] = parameter.grad / distributed.world(run)
    model.zero_grad()
    distributed.distribute(model, run, mesh)
    model(tokens).square().sum().backward()
    found = []
    for name, parameter in model.named_parameters():
        own = parameter.grad.full_tensor()
        mean = whole[name]
        if len(own) < len(mean):
            mean = mean.split(len(own))[mesh.get_local_rank("expert")]
        found.append(float((own - mean).abs().max() / whole[name].abs().max()))
    return max(found)


def test_divided_experts_compute_what_one_device_does(tmp_path):
    a = Decoder(**FOUR | {"router_bias": "none", "d_shared": 6})
    run = RunConfig(batch=2, length=16, backend="cpu", expert_parallel=2)
    for difference in of_all_ranks(_largest_difference, a, run, tmp_path):
        assert difference < 1e-5


def _largest_difference(a: Decoder, run: RunConfig) -> float:
    """Compare the logits and a gradient of a model with those of its divided copy."""
    model = build(a, "cpu", "float32")
    torch.manual_seed(0)
    initialise(model)
    for layer in model.layer:
        torch.nn.init.normal_(layer.moe.router.weight)
    mesh = distributed.mesh_of(run)
    generator = torch.Generator().manual_seed(mesh.get_rank())
    tokens = torch.randint(a.n_vocab, (run.batch, run.length), generator=generator)
    found = []
    for _ in range(2):
        model.zero_grad()
        logits = model(tokens)
        logits.square().sum().backward()
        found.append((logits.detach(), model.embedding.token.weight.grad.clone()))
        if len(found) == 1:
            distributed.distribute(model, run, mesh)
    return max(float((x - y).abs().max() / x.abs().max()) for x, y in zip(*found, strict=True))


def test_columns_equal_integers():
    for a, run in [*map(random_device, (1, 2, 7)), random_shards(1)]:
        row = {"architecture": "it", "run": "so", "family": "decoder"}
        row |= a.model_dump() | run.model_dump()
        another = {"architecture": "another", "expert_parallel": 1, "d_expert": 40, "batch": 8}
        another |= {"data_parallel": 2}
        table = predict(pl.DataFrame([row, row | another]), COMPARED)
        for quantity, values in predicted(a, run).items():
            assert in_first_row(table, quantity) == values, (run, quantity)


def test_layouts_divide_experts(catalogue):
    """By all divisors of their number, and as the record predicts it."""
    base = catalogue["mixtral-8x7b"]
    run = {"batch": 1, "recompute": "none", "dtype": "float32", "foreach": False}
    run |= {"attention_kernel": "math"}
    found = layouts(base, run | {"length": 64, "zero": 0, "pipeline_schedule": "none"}, [16])
    assert set(found["expert_parallel"]) == {1, 2, 4, 8}
    found = found.drop_nulls("bytes")
    of_row = {name: found.row(-1, named=True)[name] for name in LAYOUT}
    a, one = named_architecture(base), RunConfig(**run | of_row, length=64)
    assert max(predicted(a, one)["peak_training_bytes"].values()) == found["bytes"][-1]


REFUSED = {
    "expert_parallel: 3": "n_expert = 8: expert_parallel = 3 devices do not divide it",
    "routing: one_device": "routing = 'one_device': expert_parallel = 1 has no other device",
    "expert_parallel: 2, zero: 1, master_weights: true, dtype: bfloat16, gradient_casts: "
    "accumulated": "not known yet with zero: 1; allowed: 0 or 2 or 3",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_what_devices_cannot_divide_is_refused(sweep, settings):
    with pytest.raises(Exception, match="parallel") as error:
        sweep(f"base: mixtral-8x7b\nfixed: {{{settings}}}\npoints: [{{}}]\n")
    assert REFUSED[settings] in str(error.value)


def test_models_and_quantities_without_divided_experts_are_refused(sweep):
    text = "base: BASE\nfixed: {expert_parallel: 2}\npoints: [{}]\n"
    for base, measure, reason in (
        ("llama-3-8b", "{quantities: [parameters]}", "expert_parallel = 2: mlps = mlp has no exp"),
        ("mixtral-8x7b", "{quantities: [cache_bytes]}", "cache_bytes is not known of experts of s"),
        ("mixtral-8x7b", "{device: cpu}", "expert_parallel = 2 is measured without a device"),
        ("bert-base", "{quantities: [parameters]}", "the family encoder has no such setting"),
    ):
        with pytest.raises(Exception, match="parallel") as error:
            sweep(text.replace("BASE", base) + f"measure: {measure}\n")
        assert reason in str(error.value)
