"""What one device holds where a model is divided in several ways at once: stages of a pipeline,
shards or parts of states (ZeRO 1, 2, 3), shares of what devices compute together. Formulas against
torch's own code on a fake process group, and that against processes that communicate.
"""

import random

import polars as pl
import pytest
from helpers.devices import COMPARED, compared, measured, predicted, programmed
from helpers.divided import LLAMA, SHAPES, SMALL
from helpers.gloo import steps_of_all_ranks
from helpers.readings import in_first_row
from helpers.tiers import seeds

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.families.decoder import Decoder
from modelbudget.predict.predict import predict

STAGES = {"pipeline_parallel": 2, "pipeline_schedule": "1f1b", "n_microbatch": 2}
BUFFER = {"dtype": "bfloat16", "master_weights": True, "gradient_casts": "accumulated"}
PRODUCTS = (("pipeline", "tensor"), ("pipeline", 2), ("pipeline", "tensor", 2), ("pipeline", 1),
            (2,), ("tensor", 2), ("tensor", 1), ("pipeline", "tensor", 1))  # fmt: skip


def random_device(seed: int) -> tuple[Decoder, RunConfig]:
    """Return a small decoder that its run's devices can divide, and a product of divisions."""
    draw, product = random.Random(seed), PRODUCTS[seed % len(PRODUCTS)]
    shape = {
        "n_vocab": draw.choice([4, 64, 1004]), "d_model": draw.choice([4, 16, 36]),
        "n_head": draw.choice([4, 8]), "n_kv_head": draw.choice([1, 4]), "n_layer": 6,
        "d_head": draw.choice([4, 16]), "d_ff": draw.choice([4, 120]), "tied": draw.random() < 0.5,
        "parallel": draw.random() < 0.3, "gated": draw.random() < 0.5, "position": "rotary",
        "norm": draw.choice(["layernorm", "rmsnorm"]), "final_norm": draw.random() < 0.8,
    }  # fmt: skip
    run = {"batch": draw.choice([4, 8]), "length": draw.choice([4, 16])}
    run["outputs"] = draw.choice(["freed", "kept"])
    if "pipeline" in product:
        stages = draw.choice([2, 3])
        run |= STAGES | {"pipeline_parallel": stages, "n_microbatch": 4}
        run["pipeline_schedule"] = draw.choice(["gpipe", "1f1b"])
        run["pipeline_rank"] = draw.choice(["first", "last"] + ["middle"] * (stages - 2))
        if seed > 7:
            run |= {"pipeline_schedule": "interleaved_1f1b", "virtual_stages": 6 // stages}
    if "tensor" in product:
        sequence = draw.random() < 0.5
        run |= {"tensor_parallel": draw.choice([2, 4]), "sequence_parallel": sequence}
        packs = 2 not in product  # shards of packed matrices have no formula at the peak
        if packs and shape["n_kv_head"] > 1:
            run["projections"] = draw.choice(["separate", "packed", "sliced", "copied"])
        if packs and shape["gated"]:
            run["gate_and_up"] = draw.choice(["separate", "packed"])
            kernels = ["fused", "fused_gate"] if run["gate_and_up"] == "packed" else ["fused"]
            run["activation_kernel"] = draw.choice(kernels)
        if "pipeline" not in product:
            run["rope_tables"] = draw.choice(["layer", "model", "complex"])
        if "pipeline" not in product and run["outputs"] == "freed":
            run["loss_kernel"] = draw.choice(["torch", "in_place"])
        in_parts = 1 in product or (sequence and 2 in product)
        kernels = ["foreach"] * (sequence or in_parts) + ["fused"] * in_parts
        run |= dict.fromkeys(draw.choices(kernels) if kernels else [], True)
    if product[-1] in (1, 2):
        run |= {"zero": product[-1], "data_parallel": draw.choice([2, 3, 5])}
        run["data_rank"] = draw.choice(["first", "last"])
    return Decoder(**shape), RunConfig(**run | (BUFFER if 1 in product else {}))


@pytest.mark.parametrize("seed", seeds(16))
def test_random_products_are_predicted(seed):
    a, run = random_device(seed)
    assert run_mistake(a, run) is None
    formulas, found = predicted(a, run), measured(a, run)
    assert programmed(a, run) == found, run
    assert formulas.items() <= found.items(), run
    by_program_alone = {"copied", "sliced", "complex", "in_place", "interleaved_1f1b"}
    is_by_program = by_program_alone & {*dict(run).values()} or run.gate_and_up == "packed"
    keeps_outputs = run.pipeline_parallel > 1 and run.outputs == "kept"
    assert "peak_training_bytes" in formulas or is_by_program or keeps_outputs


@pytest.mark.parametrize("name", ["GPT-2", "PaLM", "Gemma 2"])
def test_the_peak_of_three_divisions_with_zero_3_by_program(name):
    """What is gathered for each microbatch again has no formula."""
    a = Decoder(**SMALL | SHAPES[name] | {"n_layer": 4})
    shared = {"tensor_parallel": 2, "sequence_parallel": True, "zero": 3, "data_parallel": 3}
    run = RunConfig(batch=2, length=8, pipeline_rank="last", **STAGES, **shared)
    formulas, values = predicted(a, run), measured(a, run)
    assert values.keys() - formulas.keys() == {"peak_training_bytes"}
    assert programmed(a, run) == values
    assert formulas.items() <= values.items()


EXPERTS = {"mlps": "moe", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 24, "d_shared": 8}


@pytest.mark.parametrize(
    "other",
    [
        {"expert_parallel": 2, "zero": 3, "pipeline_schedule": "gpipe"},
        {"expert_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True},
        {"context_parallel": 2, "context_exchange": "ring", "zero": 2},
    ],
)
def test_stages_of_experts_and_of_parts_of_a_sequence_by_program(other):
    """Only this sees a stage whose layers exchange tokens with other devices."""
    a = Decoder(**SMALL | LLAMA | EXPERTS | {"n_layer": 4, "n_dense_layer": 1})
    run = STAGES | {"batch": 2, "length": 16, "dtype": "bfloat16", "attention_kernel": "flash"}
    run = RunConfig(data_parallel=2 if "zero" in other else 1, **run | other)
    assert run_mistake(a, run) is None
    assert programmed(a, run) == measured(a, run)


@pytest.mark.parametrize(("d_model", "data_parallel"), [(4, 2), (64, 4)])
def test_a_share_of_the_embeddings_gradient_is_copied_to_the_buffer(d_model, data_parallel):
    """In the wider model, the share is part of the peak."""
    a = Decoder(**SMALL | {"n_vocab": 9000, "d_model": d_model, "n_layer": 2, "tied": False})
    run = RunConfig(length=4, tensor_parallel=4, zero=1, data_parallel=data_parallel, **BUFFER)
    assert predicted(a, run) == measured(a, run)


def test_the_last_gradient_of_a_stage_is_held_while_it_is_reduced():
    """That of the head, which is most of the last stage."""
    a = Decoder(**SMALL | LLAMA | {"n_vocab": 9000, "n_layer": 4})
    stages = STAGES | {"pipeline_parallel": 2, "pipeline_schedule": "gpipe", "n_microbatch": 1}
    run = RunConfig(length=2, zero=2, data_parallel=2, pipeline_rank="last", **stages)
    assert predicted(a, run) == measured(a, run)


def test_parts_of_all_devices_are_the_whole():
    """ZeRO-1: 12 bytes of float32 for each parameter, on one device or another."""
    a = Decoder(**SMALL | LLAMA)
    run = RunConfig(length=8, zero=1, data_parallel=5, **BUFFER)
    last = run.model_copy(update={"data_rank": "last"})
    first, last = (a.optimizer_bytes(a, one)["model"].total for one in (run, last))
    n_parameters = sum(term.total for term in a.parameters(a).values())
    assert 4 * first + last == 12 * n_parameters + 5 * 4
    assert (
        predicted(a, run)["gradient_bytes"] == predicted(a, RunConfig(length=8))["gradient_bytes"]
    )


OPTIMIZERS = ("adamw", "momentum", "muon", "adafactor", "rprop", "asgd")


@pytest.mark.parametrize("rank", ["first", "last"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_part_of_the_states_by_program(optimizer, rank):
    """One row of all parameters, whatever the optimizer: Muon leaves it to AdamW."""
    a, number = Decoder(**SMALL | LLAMA), OPTIMIZERS.index(optimizer)
    run = RunConfig(
        batch=2, length=8, zero=1, data_parallel=(2, 5, 64)[number % 3], data_rank=rank,
        optimizer=optimizer, foreach=number % 2 == 1, **BUFFER,
    )  # fmt: skip
    assert programmed(a, run) == measured(a, run)
    if optimizer in ("muon", "adafactor"):
        assert "peak_training_bytes" not in predicted(a, run)


def test_columns_equal_integers():
    for seed in (1, 2, 7):
        a, run = random_device(seed)
        run = run.model_copy(update={"outputs": "freed"})  # kept by a stage: by program alone
        row = {"architecture": "it", "run": "so", "family": "decoder"}
        row |= a.model_dump() | run.model_dump()
        another = {"architecture": "another", "n_layer": 12, "batch": 8, "d_model": 40}
        another |= {"data_parallel": 7, "tied": not a.tied}
        table = predict(pl.DataFrame([row, row | another]), COMPARED)
        found = predicted(a, run)
        for quantity in COMPARED:
            assert in_first_row(table, quantity) == found[quantity], (seed, quantity)


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        {"tensor_parallel": 2},
        {"data_parallel": 2, "zero": 2},
        {"data_parallel": 2, "zero": 3},
        {
            "data_parallel": 2,
            "zero": 3,
            "pipeline_schedule": "interleaved_1f1b",
            "virtual_stages": 2,
        },
    ],
)
def test_four_processes_that_communicate_hold_the_same(tmp_path, other):
    """At the peak, gloo may also hold what a stage has sent; all else is equal."""
    a = Decoder(**SMALL | LLAMA | {"n_layer": 4})
    run = RunConfig(batch=4, length=16, backend="cpu", **STAGES | other)
    states = 4 * 2 * 16 * a.d_model
    ranks = steps_of_all_ranks(a, run, tmp_path)
    for i, found in enumerate(map(compared, ranks)):
        ends = ("first", "last")
        device = {"pipeline_rank": ends[i // 2], "data_rank": ends[i % 2 if "zero" in other else 0]}
        expected = measured(a, run.model_copy(update=device))
        peaks = found.pop("peak_training_bytes"), expected.pop("peak_training_bytes")
        assert found == expected, i
        for phase, n_bytes in peaks[1].items():
            assert 0 <= peaks[0][phase] - n_bytes <= states, (i, phase)
