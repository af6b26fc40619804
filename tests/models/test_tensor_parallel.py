"""What one of several devices that compute one model holds: formulas against torch's own
`parallelize_module` on a fake process group, and that against processes that communicate.
"""

from itertools import cycle, product

import pytest
from helpers.allocations import first_difference, traced_of_rank
from helpers.allocations import programmed as allocations
from helpers.devices import compared, measured, predicted, programmed
from helpers.divided import (
    LLAMA,
    PARTS_OF_HEADS,
    RUNS,
    SHAPES,
    SMALL,
    random_share,
    random_share_with,
)
from helpers.gloo import steps_of_all_ranks
from helpers.tiers import some
from torch.distributed.tensor import DTensor

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.reference.class_run import class_run
from modelbudget.sweeps.derive import named_architecture

OF_WEIGHTS = "parameter_bytes", "gradient_bytes", "optimizer_bytes"
SLOW = pytest.mark.slow
DIVISIONS = tuple(product((2, 4), (False, True)))


def agree(a: Decoder, run: RunConfig) -> bool:
    """Return whether formulas and program give what is measured, the program of all formulas."""
    formulas, programs, values = predicted(a, run), programmed(a, run), measured(a, run)
    assert len(programs) >= 6
    assert formulas.keys() >= {*OF_WEIGHTS, "flops_forward"}
    is_behind = run.norm_kernel == "written_out" and a.norm_placement != "pre"
    by_program_alone = {"activation_bytes"} if run.dropout or is_behind else set()
    assert len(formulas.keys() | by_program_alone) >= 5
    found = (formulas, programs)
    return all(one == {quantity: values[quantity] for quantity in one} for one in found)


@pytest.mark.parametrize("name", SHAPES)
def test_a_devices_share_is_predicted(name):
    """Each shape in a third of the runs, and each run with a third of the shapes; half of these."""
    a, i = Decoder(**SMALL | SHAPES[name]), list(SHAPES).index(name)
    divisions = cycle(DIVISIONS[i % 4 :] + DIVISIONS[: i % 4])
    runs = some(RUNS[i % 3 :: 3], 2, i)
    for settings, (devices, sequence) in zip(runs, divisions, strict=False):
        run = RunConfig(tensor_parallel=devices, sequence_parallel=sequence, **settings)
        assert agree(a, run), run


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("name", ["GPT-2", "PaLM", "Gemma 2", "norms after"])
def test_a_program_makes_each_allocation_in_order(name, sequence):
    """Also those of exchanges that no peak shows: of masks, of each token's loss, of norms."""
    a = Decoder(**SMALL | SHAPES[name] | {"d_emb": 12 if name == "PaLM" else 0})
    run = RunConfig(batch=2, length=8, tensor_parallel=2, sequence_parallel=sequence)
    assert not first_difference(allocations(a, run), traced_of_rank(a, run))


@pytest.mark.parametrize("devices", [2, 4])
def test_rows_that_cuda_sorts_are_of_the_whole_vocabulary(devices):
    """More than 3,072: only this sees what `embedding_dense_backward` has beside its result."""
    a = Decoder(**SMALL | SHAPES["Llama"] | {"n_vocab": 8192, "n_layer": 1})
    run = RunConfig(batch=25, length=128, dtype="bfloat16", tensor_parallel=devices)
    assert not first_difference(allocations(a, run), traced_of_rank(a, run))
    assert agree(a, run)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("name", ["Llama", "Gemma 2"])
def test_a_checkpoint_keeps_sums_over_devices(name, sequence):
    """`selective_op` keeps what a reduce-scatter gave, but not what an all-reduce gave."""
    settings = {"recompute": "selective_op", "attention_kernel": "efficient"}
    run = RunConfig(batch=2, length=8, tensor_parallel=2, sequence_parallel=sequence, **settings)
    a = Decoder(**SMALL | SHAPES[name])
    assert not first_difference(allocations(a, run), traced_of_rank(a, run))


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"attention_gate": True}, {"projections": "gated_query"}),
        (
            {"mlps": "moe", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 24, "d_shared": 16},
            {"gate_and_up": "packed"},
        ),
    ],
    ids=["gated queries", "shared experts"],
)
def test_a_device_has_rows_of_each_part_of_a_packed_matrix(fields, setting):
    a = Decoder(**SMALL | SHAPES["Llama"] | fields)
    run = RunConfig(batch=2, length=8, tensor_parallel=2, **setting)
    assert not first_difference(allocations(a, run), traced_of_rank(a, run))


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(n, marks=SLOW) for n in range(6, 60))])
def test_random_shares_by_program(seed):
    """Norms of heads, sinks, gates, experts with shards, shifted labels, and all of it at once."""
    check_random(*random_share(seed))


@pytest.mark.parametrize("part", PARTS_OF_HEADS)
@pytest.mark.parametrize("seed", [12, *(pytest.param(n, marks=SLOW) for n in range(8))])
def test_random_shares_of_heads(part, seed):
    """Only this sees biases of scores, separate norms, latents and projections of embeddings."""
    check_random(*random_share_with(part, seed))


def test_a_mesh_that_torch_keeps_is_not_traced():
    """DTensor makes one with the first operation of a process that it decomposes, and keeps it."""
    DTensor._op_dispatcher.sharding_propagator.decomp_strategy._fake_meshes.clear()
    check_random(*random_share_with("xIELU", 0))


def check_random(a: Decoder, run: RunConfig) -> None:
    assert run_mistake(a, run) is None
    programs, values = programmed(a, run), measured(a, run)
    needs_no_peak = run.optimizer != "adamw" and not run.zero and not run.master_weights
    assert ("peak_training_bytes" in programs) != needs_no_peak
    for one in (predicted(a, run), programs):
        assert one == {quantity: values[quantity] for quantity in one}, run


@pytest.mark.parametrize("name", ["gpt-2-124m", "llama-3-8b"])
def test_published_models_on_several_devices(catalogue, name):
    sizes = {"n_layer": 3, "vocab_multiple": 128}
    a = named_architecture(catalogue[name]).model_copy(update=sizes)
    run = RunConfig(dtype="bfloat16", attention_kernel="flash", length=512, tensor_parallel=4)
    assert agree(a, run)
    assert agree(a, run.model_copy(update={"sequence_parallel": True}))


@pytest.mark.parametrize("sequence", [False, True])
def test_peaks_with_a_formula(sequence):
    run = RunConfig(length=8, tensor_parallel=2, sequence_parallel=sequence)
    after = Decoder(**SMALL | SHAPES["norms after"])
    assert after.has_formula_for("peak_training_bytes", after, run) == (not sequence)
    for name in ("GPT-2", "Llama", "PaLM", "Gemma 2"):
        a = Decoder(**SMALL | SHAPES[name])
        assert a.has_formula_for("peak_training_bytes", a, run)
        momentum = run.model_copy(update={"optimizer": "momentum"})
        assert not a.has_formula_for("peak_training_bytes", a, momentum)
    fused = run.model_copy(update={"fused": True})
    assert not a.has_formula_for("peak_training_bytes", a, fused)


def test_all_devices_together_have_each_matrix_once():
    a = Decoder(**SMALL)
    run = RunConfig(length=8, tensor_parallel=4)
    whole, share = (a.parameter_bytes(a, r) for r in (RunConfig(length=8), run))
    for name in ("embedding.token", "layer.attention.query", "layer.mlp.down"):
        assert whole[name].total == 4 * share[name].total
    assert whole["layer.norm.mlp"] == share["layer.norm.mlp"]


def test_a_momentum_of_a_buffer_is_a_share():
    """It begins as a copy of the gradient, of which the buffer has a share for the embedding."""
    a = Decoder(**SMALL | SHAPES["Llama"])
    buffer = {"dtype": "bfloat16", "master_weights": True, "gradient_casts": "accumulated"}
    run = RunConfig(length=8, tensor_parallel=2, optimizer="momentum", **buffer)
    assert predicted(a, run)["optimizer_bytes"] == measured(a, run)["optimizer_bytes"]


MEGATRON = {"sequence_parallel": True, "projections": "packed", "gate_and_up": "packed"}
MEGATRON |= {"loss_kernel": "in_place"}
GATHERS_AGAIN = MEGATRON | {"gathered_states": "again", "embedding_gradient": "own_rows"}


@pytest.mark.parametrize("settings", [{}, {"sequence_parallel": True}, MEGATRON, GATHERS_AGAIN])
@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_that_communicate_hold_the_same(tmp_path, devices, settings):
    d_emb = 12 if settings == {"sequence_parallel": True} else 0
    a = Decoder(**SMALL | SHAPES["Llama"] | {"d_emb": d_emb})
    run = RunConfig(batch=2, length=16, backend="cpu", tensor_parallel=devices, **settings)
    expected = measured(a, run)
    for found in steps_of_all_ranks(a, run, tmp_path):
        assert compared(found) == expected


REFUSED = {
    "tensor_parallel: 5": "n_head = 12: tensor_parallel = 5 devices do not divide it",
    "tensor_parallel: 2": "n_vocab = 50,257: tensor_parallel = 2 devices do not divide its 50,257 "
    "rows; allowed: a vocab_multiple that they divide",
    "tensor_parallel: 2, vocab_multiple: 2, sequence_parallel: true, length: 7": "length = 7: "
    "sequence_parallel: true: tensor_parallel = 2 devices do not divide it",
    "tensor_parallel: 2, vocab_multiple: 2, dtype: bfloat16, master_weights: true": ""
    "tensor_parallel = 2 with zero = 0: master_weights: true is known with gradient_casts: "
    "accumulated",
    "sequence_parallel: true": "sequence_parallel = true: tensor_parallel = 1 has no other device",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_what_devices_cannot_divide_is_refused(sweep, settings):
    with pytest.raises(Exception, match="parallel") as error:
        sweep(f"base: gpt-2-124m\nfixed: {{{settings}}}\npoints: [{{}}]\n")
    assert REFUSED[settings] in str(error.value)


NOT_AT_ONCE = {
    "sinks": {"sinks": True},
    "qk_norm": {"qk_norm": "joint"},
    "buckets": {"position": "buckets", "n_bucket": 8},
    "inner_norm": {"inner_norm": True},
    "mla": PARTS_OF_HEADS["MLA"],
}
"""What devices divide as plain tensors (vLLM and transformers), next to torch's DTensors."""


@pytest.mark.parametrize(("name", "fields"), NOT_AT_ONCE.items(), ids=NOT_AT_ONCE)
def test_torch_cannot_step_plain_tensors_and_dtensors_at_once(name, fields):
    a = Decoder(**SMALL | LLAMA | fields)
    mesh = {"tensor_parallel": 2, "sequence_parallel": True, "length": 8, "optimizer": "adamw"}
    run = RunConfig(**mesh, foreach=True)
    assert name in run_mistake(a, run)
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        measured(a, run)
    for allowed in ({"foreach": False}, {"zero": 3, "data_parallel": 2}):
        assert run_mistake(a, run.model_copy(update=allowed)) is None


def test_a_class_is_traced_on_one_device():
    with pytest.raises(ValueError, match="tensor_parallel = 2: GPT2LMHeadModel is traced on one"):
        class_run("GPT2LMHeadModel", RunConfig(tensor_parallel=2))


def test_quantities_and_families_that_are_not_divided_are_refused(sweep):
    text = "base: BASE\nfixed: {tensor_parallel: 2, vocab_multiple: 2}\npoints: [{}]\n"
    for base, measure, reason in (
        ("gpt-2-124m", "{quantities: [resident_bytes]}", "resident_bytes is not known of shares"),
        ("gpt-2-124m", "{device: cpu}", "tensor_parallel = 2 is measured without a device"),
        ("bert-base", "{quantities: [parameters]}", "the family encoder has no such setting"),
    ):
        with pytest.raises(Exception, match="parallel") as error:
            sweep(text.replace("BASE", base) + f"measure: {measure}\n")
        assert reason in str(error.value)
