"""What one device holds where several divide the tokens of a sequence: formulas against torch's
collectives on a fake process group, and that against processes that communicate.
"""

import random

import polars as pl
import pytest
import torch
import torch.distributed as dist
from helpers.allocations import first_difference, traced_of_rank
from helpers.allocations import programmed as of_program
from helpers.devices import COMPARED, compared, measured, predicted, programmed
from helpers.gloo import of_all_ranks, steps_of_all_ranks
from helpers.readings import in_first_row
from helpers.tiers import seeds

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel import rank as distributed
from modelbudget.measurement.trace.backend import kernels
from modelbudget.modules.initialise import initialise
from modelbudget.predict.layout_search import LAYOUT, layouts
from modelbudget.predict.predict import predict
from modelbudget.sweeps.derive import named_architecture

SMALL = {"n_vocab": 64, "d_model": 32, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "d_head": 16}
SMALL |= {"d_ff": 48}
FLASH = {"attention_kernel": "flash", "dtype": "bfloat16"}
GPU = "attention_kernel: flash, dtype: bfloat16"


def random_device(seed: int) -> tuple[Decoder, RunConfig]:
    """Return a small decoder, and a run of devices that divide the tokens of its sequences."""
    draw = random.Random(seed)
    devices, tensor = draw.choice([2, 2, 4]), draw.choice([1, 1, 2])
    exchange = draw.choice(["all_to_all", "all_gather", "ring"])
    sends_heads = exchange == "all_to_all"
    n_kv_head = draw.choice([1, 2]) * (devices if sends_heads else 1) * tensor
    least = (2 - sends_heads) * devices * tensor
    biased, sequence = draw.random() < 0.3, tensor > 1 and draw.random() < 0.5
    shape = {
        "n_kv_head": n_kv_head, "n_head": n_kv_head * draw.choice([1, 2]),
        "position": draw.choice(["none", "sinusoidal", "rotary"]), "gated": draw.random() < 0.5,
        "d_head": draw.choice([8, 16, 64]), "d_model": draw.choice([16, 32, 64]),
        "d_ff": draw.choice([16, 64, 256]), "n_layer": draw.choice([2, 4]),
        "query_bias": biased, "key_bias": biased, "value_bias": biased,
        "attention_gate": tensor == 1 and draw.random() < 0.3,
    }  # fmt: skip
    run = FLASH | {
        "context_parallel": devices, "context_exchange": exchange,
        "tensor_parallel": tensor, "sequence_parallel": sequence,
        "batch": draw.choice([1, 1, 2, 4]), "length": draw.choice([least, 64, 128]),
        "recompute": draw.choice(["none", "full", "selective"]),
        "data_parallel": draw.choice([1, 2]), "zero": draw.choice([0, 0, 2, 3]),
        "data_rank": draw.choice(["first", "last"]), "dropout": tensor == 1 and seed % 7 == 0,
    }  # fmt: skip
    if run["zero"] == 0 and sends_heads and seed % 2:
        run |= {"projections": "packed"}
    if run["zero"] == 0 and seed % 3 == 0:
        run |= {"zero": 1, "gradient_casts": "accumulated", "master_weights": True}
    if run["zero"] in (0, 2) and seed % 5 == 0:
        run |= {"pipeline_parallel": 2, "pipeline_schedule": "1f1b", "n_microbatch": 2, "batch": 4}
    return Decoder(**SMALL | shape), RunConfig(**run)


@pytest.mark.parametrize("seed", seeds(15))
def test_random_devices_are_predicted(seed):
    a, run = random_device(seed)
    assert run_mistake(a, run) is None
    formulas, values = predicted(a, run), measured(a, run)
    is_closed = run.context_exchange == "all_to_all" and run.projections == "separate"
    assert ("activation_bytes" in formulas) == (is_closed and not run.dropout)
    assert formulas.items() <= values.items(), run
    # Matrices are packed after their bytes were counted.
    assert programmed(a, run) | {"parameter_bytes": values["parameter_bytes"]} == values, run


IN_THE_MIDDLE = [
    {"context_parallel": 5, "context_exchange": "ring"},
    {"context_parallel": 3, "context_exchange": "all_gather", "zero": 3, "data_parallel": 3},
    {"context_parallel": 8, "context_exchange": "ring", "zero": 2, "recompute": "selective"},
    {"context_parallel": 4, "context_exchange": "ring", "backend": "cpu", "dtype": "float32"},
]


@pytest.mark.parametrize("settings", IN_THE_MIDDLE)
def test_a_device_in_the_middle_of_a_ring(settings):
    """It merges some blocks of half its queries and some of half the keys."""
    a = Decoder(**SMALL | {"n_vocab": 67, "n_layer": 3, "position": "rotary"})
    run = RunConfig(**FLASH | settings, batch=2, length=240, data_rank="middle")
    assert run_mistake(a, run) is None
    assert programmed(a, run) == measured(a, run)


@pytest.mark.parametrize(
    ("exchange", "recompute"), [("all_gather", "full"), ("ring", "selective_op")]
)
def test_every_allocation_of_a_ring_is_torchs(exchange, recompute):
    """Random peaks see neither that what a device sends is freed before the first block, nor that
    checkpointing of operations keeps the result of each block (torchtitan's `_save_list`)."""
    a = Decoder(**SMALL | {"n_head": 32, "n_kv_head": 8, "d_head": 8})
    settings = {"context_parallel": 4, "context_exchange": exchange, "recompute": recompute}
    run = RunConfig(**FLASH | settings, batch=8, length=32)
    assert not first_difference(of_program(a, run), traced_of_rank(a, run))


TORCHTITAN = {
    "master_weights": True, "reduce_dtype": "float32", "foreach": True, "loss_dtype": "float32",
    "rope_tables": "complex", "norm_kernel": "written_out", "context_exchange": "all_gather",
}  # fmt: skip


@pytest.mark.parametrize("rank", ["first", "last"])
def test_stages_of_shards_of_shares_of_parts_of_a_sequence(rank):
    """torchtitan's mesh of four dimensions. The gradient of a share of the embedding is one of all
    rows, also where those of microbatches are added up in float32; later stages read a part of the
    length, and positions of all of it.
    """
    mesh = {"pipeline_parallel": 2, "tensor_parallel": 2, "data_parallel": 2, "context_parallel": 2}
    stages = {"pipeline_schedule": "1f1b", "n_microbatch": 4, "batch": 4, "pipeline_rank": rank}
    a = Decoder(**SMALL | {"n_layer": 4, "n_vocab": 1024, "position": "rotary", "tied": False})
    settings = TORCHTITAN | mesh | stages | {"sequence_parallel": True, "zero": 2, "length": 64}
    run = RunConfig(**FLASH | settings)
    assert run_mistake(a, run) is None
    assert programmed(a, run) == measured(a, run)


def test_a_published_model(catalogue):
    a = named_architecture(catalogue["llama-3-8b"]).model_copy(update={"n_layer": 2})
    run = RunConfig(**FLASH, context_parallel=8, zero=3, length=131_072, recompute="full")
    assert predicted(a, run) == programmed(a, run) == measured(a, run)


def test_devices_divide_activations_and_flops_by_hand():
    a = Decoder(**SMALL)
    alone, divided = (
        predicted(a, RunConfig(**FLASH, length=64, context_parallel=n)) for n in (1, 2)
    )
    assert divided["parameter_bytes"] == alone["parameter_bytes"]
    for quantity in ("flops_forward", "flops_backward"):
        halves = {name: 2 * n for name, n in divided[quantity].items()}
        assert halves == alone[quantity]
    core = "layer.attention.core"
    # All that attention saves but a random state of 24 bytes a layer. The output projection saves
    # what has been exchanged: 32 tokens, 4 heads of 16 channels in bfloat16, 2 layers.
    saved = [one["activation_bytes"] for one in (alone, divided)]
    assert saved[0][core] - 2 * 24 == 2 * (saved[1][core] - 2 * 24)
    assert saved[1]["layer.attention.output"] == 2 * 32 * 4 * 16 * 2


CPU = {"length": 16, "backend": "cpu", "attention_kernel": "flash", "context_parallel": 2}
COMPUTED = [
    ("all_to_all", {"position": "rotary"}),
    ("all_to_all", {"position": "learned", "n_ctx": 16}),
    ("all_gather", {"position": "none"}),
    ("ring", {"position": "none"}),
]


@pytest.mark.parametrize("exchange", ["all_to_all", "all_gather", "ring"])
def test_processes_that_communicate_hold_the_same(tmp_path, exchange):
    a, run = Decoder(**SMALL), RunConfig(**CPU, batch=2, context_exchange=exchange)
    for rank, found in zip(("first", "last"), steps_of_all_ranks(a, run, tmp_path), strict=True):
        assert compared(found) == measured(a, run.model_copy(update={"data_rank": rank})), rank


@pytest.mark.parametrize(("exchange", "shape"), COMPUTED)
def test_devices_compute_what_one_does(tmp_path, exchange, shape):
    a, run = Decoder(**SMALL | shape), RunConfig(**CPU, context_exchange=exchange)
    for difference in of_all_ranks(_largest_difference, a, run, tmp_path):
        assert difference < 1e-5


def _largest_difference(a: Decoder, run: RunConfig) -> float:
    """Compare logits and a gradient, summed over devices, with those of the whole model."""
    model = build(a, "cpu", "float32")
    torch.manual_seed(0)
    initialise(model)
    tokens = torch.randint(a.n_vocab, (2, run.length))
    mesh, found = distributed.mesh_of(run), []
    weight = model.layer[0].attention.key.weight
    for _ in range(2):
        model.zero_grad()
        with kernels(run):
            logits = model(tokens)
            logits.square().sum().backward()
        found.append((logits.detach(), weight.grad.clone()))
        if len(found) == 1:
            distributed.distribute(model, run, mesh)
            tokens = _own(tokens, run, mesh.get_rank())
    (whole, of_whole), (own, of_own) = found
    dist.all_reduce(of_own)
    pairs = (_own(whole, run, mesh.get_rank()), own), (of_whole, of_own)
    return max(float((x - y).abs().max() / x.abs().max()) for x, y in pairs)


def _own(whole, run: RunConfig, rank: int):
    """Return the tokens of one of two devices; in a ring each has parts of both ends."""
    if run.context_exchange == "all_to_all":
        return whole.chunk(2, 1)[rank]
    parts = whole.chunk(4, 1)
    return torch.cat([parts[rank], parts[3 - rank]], 1)


def test_columns_equal_integers():
    for seed in range(2, 8):
        a, run = random_device(seed)
        row = {"architecture": "it", "run": "so", "family": "decoder"}
        row |= a.model_dump() | run.model_dump()
        another = {"architecture": "another", "context_parallel": 1, "d_ff": 40, "batch": 8}
        table = predict(pl.DataFrame([row, row | another]), COMPARED)
        found = programmed(a, run) | predicted(a, run)
        for quantity in found:
            assert in_first_row(table, quantity) == found[quantity], (seed, quantity)


def test_layouts_divide_tokens(catalogue):
    """By all divisors that the heads allow, and as the record predicts it."""
    base, run = catalogue["llama-3-8b"], {"batch": 1, "recompute": "none", **FLASH}
    found = layouts(base, run | {"length": 64, "zero": 3, "pipeline_schedule": "none"}, [16])
    assert set(found["context_parallel"]) == {1, 2, 4, 8}
    of_row = {name: found.row(-1, named=True)[name] for name in LAYOUT}
    a, one = named_architecture(base), RunConfig(**run | of_row, length=64)
    assert max(predicted(a, one)["peak_training_bytes"].values()) == found["bytes"][-1]


REFUSED = {
    f"context_parallel: 32, context_exchange: ring, length: 32, {GPU}": "twice as many parts as",
    f"{GPU}, context_parallel: 2, context_exchange: ring, projections: packed": "not known yet "
    "with projections: packed",
    f"context_parallel: 3, {GPU}": "length = 1,024: context_parallel = 3 devices do not divide it",
    f"context_parallel: 16, {GPU}": "n_kv_head = 8: context_parallel = 16 devices do not divide it",
    f"{GPU}, context_parallel: 8, tensor_parallel: 2": "or what tensor_parallel = 2 leaves of it",
    "context_parallel: 2, attention_kernel: math": "attention_kernel: math; allowed: flash",
    "context_parallel: 2, autocast: bfloat16": "not known yet with autocast",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_what_devices_cannot_divide_is_refused(sweep, settings):
    fixed = f"{{{settings}}}" if "length" in settings else f"{{length: 1024, {settings}}}"
    with pytest.raises(Exception, match=r"allowed|divide") as error:
        sweep(f"base: llama-3-8b\nfixed: {fixed}\npoints: [{{}}]\n")
    assert REFUSED[settings] in str(error.value)


def test_models_and_quantities_without_divided_tokens_are_refused(sweep):
    text = "base: BASE\nfixed: {context_parallel: 2, attention_kernel: flash, dtype: bfloat16}\n"
    for base, measure, reason in (
        ("deepseek-v3", "{quantities: [activation_bytes]}", "not known yet with mixers = mla"),
        ("llama-3-8b", "{quantities: [cache_bytes]}", "cache_bytes is not known of parts of the"),
        ("llama-3-8b", "{device: cpu}", "context_parallel = 2 is measured without a device"),
        ("mamba-130m", "{quantities: [parameters]}", "has no such setting"),
    ):
        with pytest.raises(Exception, match="parallel") as error:
            sweep(text.replace("BASE", base) + f"points: [{{}}]\nmeasure: {measure}\n")
        assert reason in str(error.value)
