"""What one of several devices holds under FSDP2: formulas against torch's own `fully_shard` on a
fake process group, and that against processes that communicate.
"""

from itertools import cycle, product

import pytest
import torch
from helpers.devices import compared, measured, predicted, programmed
from helpers.gloo import steps_of_all_ranks
from helpers.strategies import decoders_that_run
from helpers.tiers import examples, some
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.catalogue.implementations import implementations
from modelbudget.common.errors import InputError
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.parallel.fake_process_group import Chunks
from modelbudget.sweeps.derive import named_architecture

# None of the numbers of devices below divides all of these rows.
SMALL = {"n_vocab": 1003, "d_model": 36, "n_layer": 3, "n_head": 2, "n_kv_head": 2, "d_head": 16}
SMALL |= {"d_ff": 100, "n_ctx": 64}
LLAMA = {"tied": False, "position": "rotary", "norm": "rmsnorm", "gated": True}
EXPERTS = {"mlps": "moe", "n_expert": 5, "n_expert_per_token": 2, "d_expert": 24, "d_shared": 6}
LATENT = {"mixers": "mla", "kv_lora_rank": 10, "q_lora_rank": 7, "d_rope": 8, "d_nope": 8}
SHAPES = {
    "GPT-2": {"query_bias": True, "up_bias": True, "norm_bias": True, "head_bias": True},
    "Llama": LLAMA | {"n_kv_head": 1},
    "two layers": {"n_layer": 2, "position": "none"},
    "large layers": {"n_vocab": 30, "d_ff": 900, "n_layer": 5},
    "PaLM": {"parallel": True, "gated": True, "position": "rotary", "n_kv_head": 1},
    "Gemma 2": LLAMA | {"norm_placement": "both", "qk_norm": "separate", "tied": True},
    "ALBERT's embedding": {"d_emb": 12, "embedding_norm": True, "final_norm": False},
    "experts": LLAMA | EXPERTS,
    "latent attention": LLAMA | LATENT | {"d_value": 10},
}
MIXED = {"dtype": "bfloat16", "master_weights": True}
RUNS = [
    {"batch": 1, "length": 2},
    {"batch": 4, "length": 32},
    {"batch": 8, "length": 16, "recompute": "full"},
    {"batch": 2, "length": 2, "recompute": "full", "dropout": True},
    {"batch": 4, "length": 16, "dtype": "bfloat16", "attention_kernel": "math", "dropout": True},
    {"batch": 2, "length": 16, "backend": "cpu", "optimizer": "momentum"},
    {"batch": 2, "length": 16, "foreach": True, "recompute": "selective"},
    {"batch": 2, "length": 16, "recompute": "selective_op", "attention_kernel": "efficient"},
    {"batch": 2, "length": 8, "outputs": "kept", "loss_dtype": "float32"},
    {"batch": 3, "length": 16, "targets": "shifted", "loss_dtype": "float32", "dtype": "bfloat16"},
    {"batch": 1, "length": 16, "targets": "shifted"},
    MIXED | {"batch": 2, "length": 16, "reduce_dtype": "float32"},
    MIXED | {"batch": 2, "length": 8, "recompute": "full", "reduce_dtype": "float32"},
    MIXED | {"batch": 1, "length": 4, "fused": True},
    {"batch": 2, "length": 8, "dtype": "bfloat16", "reduce_dtype": "float32"},
]
RANKS = ((2, "first"), (2, "last"), (7, "last"), (64, "first"), (64, "last"))


@pytest.mark.parametrize("name", SHAPES)
def test_a_devices_shards_states_and_peaks_are_predicted(name):
    """Each shape in half of the runs, and each run with half of the shapes; a third of these."""
    a, number = Decoder(**SMALL | SHAPES[name]), list(SHAPES).index(name)
    runs, ranks = some(RUNS[number % 2 :: 2], 3, number // 2), cycle(RANKS[number % 5 :])
    for of_run, (devices, rank) in zip(runs, ranks, strict=False):
        run = RunConfig(data_parallel=devices, zero=3, data_rank=rank, **of_run)
        values = measured(a, run)
        assert programmed(a, run) == values, run
        assert predicted(a, run).items() <= values.items(), run


@pytest.mark.parametrize("name", ["gpt-2-124m", "llama-3-8b", "mixtral-8x7b", "palm-540b"])
def test_published_models_on_many_devices(catalogue, name):
    a = named_architecture(catalogue[name]).model_copy(update={"n_layer": 3})
    fixed = {"dtype": "bfloat16", "attention_kernel": "flash", "length": 512}
    for devices, rank in ((96, "last"), (1000, "first")):
        run = RunConfig(data_parallel=devices, zero=3, data_rank=rank, **fixed)
        assert predicted(a, run) == measured(a, run), run


@pytest.mark.parametrize(("name", "kind"), [("llama-3-8b", "LlamaForCausalLM")])
def test_with_the_settings_of_a_class(catalogue, name, kind):
    a = named_architecture(catalogue[name]).model_copy(update={"n_layer": 3})
    fixed = implementations()["transformers"].of_class(kind) | {
        "dtype": "bfloat16", "attention_kernel": "flash", "length": 512, "data_parallel": 8,
    }  # fmt: skip
    for recompute in ("none", "full"):
        run = RunConfig(zero=3, data_rank="last", recompute=recompute, **fixed)
        assert predicted(a, run) == measured(a, run), run


def test_chunks_that_are_read_are_those_of_torch():
    for n_row, n_device in product(range(1, 9), range(1, 11)):
        tensor = torch.arange(3 * n_row).view(n_row, 3)
        ours = Chunks(tensor, n_device, dim=0)
        for index, theirs in enumerate(_chunk_with_empty(tensor, n_device, dim=0)):
            assert torch.equal(ours[index], theirs)


def test_all_devices_together_own_each_parameter_once():
    """Gradients are padded, so that devices hold more than that of them."""
    a = Decoder(**SMALL)
    run = RunConfig(length=8, data_parallel=2, zero=3, optimizer="momentum")
    last = run.model_copy(update={"data_rank": "last"})
    states = [sum(t.total for t in a.optimizer_bytes(a, one).values()) for one in (run, last)]
    n_parameters = sum(term.total for term in a.parameters(a).values())
    assert sum(states) == 4 * n_parameters
    assert sum(t.total for t in a.gradient_bytes(a, run).values()) > states[1]


@pytest.mark.parametrize("ends", [{}, {"head_bias": True}])
def test_the_last_gradient_of_a_group_is_held_while_all_are_cast(ends):
    """With a large vocabulary, where the peak is in the reduction of what is not in layers."""
    shape = LLAMA | {"n_vocab": 3000, "d_model": 4, "n_layer": 2, "d_ff": 4}
    a = Decoder(**SMALL | shape | ends)
    run = RunConfig(length=1, dtype="bfloat16", reduce_dtype="float32", zero=3, data_parallel=2)
    assert predicted(a, run) == measured(a, run)


def test_a_device_without_rows_of_its_own_counts_steps():
    """Of any tensor: the positions are 64 rows, more than the vocabulary or a projection has."""
    a = Decoder(**SMALL | {"n_vocab": 40, "d_model": 4, "d_head": 2, "d_ff": 8})
    run = RunConfig(length=8, data_parallel=128, zero=3, data_rank="last", foreach=True)
    assert sum(term.total for term in a.parameter_bytes(a, run).values())
    assert predicted(a, run) == measured(a, run)


WITHOUT_FORMULA = {
    "dense layers first": (EXPERTS | {"n_dense_layer": 1}, {}),
    "one layer": ({"n_layer": 1}, {"zero": 2}),
    "windows": ({"mixers": "sliding_attention attention", "window": 3}, {"recompute": "full"}),
    "torchtitan": ({}, {"projections": "copied", "rope_tables": "complex", "loss_chunks": 4}),
    "packed": ({}, {"projections": "packed", "gate_and_up": "packed", "zero": 2}),
}


@pytest.mark.parametrize("name", WITHOUT_FORMULA)
def test_a_program_has_the_peak_where_no_closed_formula_has(name):
    fields, of_run = WITHOUT_FORMULA[name]
    a = Decoder(**SMALL | LLAMA | fields)
    run = RunConfig(**MIXED | {"batch": 2, "length": 8, "data_parallel": 5, "zero": 3} | of_run)
    assert not a.has_formula_for("peak_training_bytes", a, run)
    assert programmed(a, run) == measured(a, run)


@settings(max_examples=examples(8), deadline=None)
@given(decoders_that_run(), st.sampled_from([2, 3]), st.sampled_from([2, 7]), st.booleans())
def test_random_decoders_by_program(drawn, zero, devices, is_mixed):
    """All mixers, experts, kernels and chunks of the loss, which no shape above has together."""
    a, run = drawn
    change = {"zero": zero, "data_parallel": devices, "data_rank": ("first", "last")[zero == 2]}
    change |= {"gradient_casts": "together", "backend": "gpu"}
    change |= MIXED | {"reduce_dtype": "float32"} if is_mixed else {"master_weights": False}
    try:
        run = RunConfig(**run.model_dump() | change)
    except InputError:  # such as flash in float32 on a GPU
        reject()
    assume(run_mistake(a, run) is None)
    assert programmed(a, run) == measured(a, run), (a, run)


def test_no_table_that_layers_read_is_gathered_between_chunks_of_the_loss():
    """Torch refuses a shard in place of T5's buckets, unless the head's group holds the table."""
    fields = {"position": "buckets", "n_bucket": 4, "n_layer": 1}
    chunks = {"batch": 2, "length": 4, "data_parallel": 2, "zero": 3, "loss_chunks": 2}
    run = RunConfig(**MIXED | chunks | {"attention_kernel": "math", "backend": "gpu"})
    untied, tied = (Decoder(**SMALL | LLAMA | fields | {"tied": tied}) for tied in (False, True))
    assert "position: buckets is not gathered" in str(run_mistake(untied, run))
    with pytest.raises(RuntimeError, match="mixed"):
        measured(untied, run)
    assert run_mistake(tied, run) is None
    assert programmed(tied, run) == measured(tied, run)


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_processes_that_communicate_hold_the_same(tmp_path, devices, name):
    """Llama in mixed precision: RMSNorm has no statistics, whose dtype would be the CPU's own."""
    a = Decoder(**SMALL | SHAPES[name])
    run = RunConfig(batch=2, length=16, backend="cpu", data_parallel=devices, zero=3)
    if name == "Llama":
        run = run.model_copy(update=MIXED | {"reduce_dtype": "float32"})
    first, *_, last = steps_of_all_ranks(a, run, tmp_path)
    for name, found in (("first", first), ("last", last)):
        of_run = compared(found)
        assert of_run == measured(a, run.model_copy(update={"data_rank": name})), name


def test_an_answer_says_that_experts_are_padded():
    """Only this sees the line. Twice the devices need more: each gathers twice the experts."""
    run = {"zero": 3, "dtype": "bfloat16", "attention_kernel": "flash", "length": 512}
    eight, sixteen = (mb.model("mixtral-8x7b").memory(run | {"data_parallel": n}) for n in (8, 16))
    assert not [line for line in eight.notes if "pads" in line]
    (line,) = [line for line in sixteen.notes if "pads" in line]
    assert "pads the 8 stacked experts of a layer to 16, of which each of 16 devices has 1" in line
    peaks = [one.totals()["peak_training_bytes"] for one in (eight, sixteen)]
    assert peaks[1] > 1.1 * peaks[0]


@pytest.mark.parametrize(
    ("foreach", "operation"), [(False, "aten.index_put_"), (True, "aten._foreach_copy_")]
)
def test_an_optimizer_that_torch_cannot_step_with_shards_is_refused(foreach, operation):
    """Torch's own error is the witness of the reason in the optimizer's file."""
    run = RunConfig(length=8, data_parallel=2, zero=3)
    change = {"optimizer": "rprop", "foreach": foreach}
    with pytest.raises(Exception, match=operation):
        measured(Decoder(**SMALL), run.model_copy(update=change))
    with pytest.raises(InputError, match=operation):
        RunConfig(**run.model_dump() | change)


REFUSED = {
    "zero: 4": "fixed.zero = 4: must be 0, 1, 2 or 3",
    "zero: 1, data_parallel: 2": "zero = 1: not known yet with data_parallel: 2, master_weights: "
    "false, gradient_casts: together; allowed: at least 2 (or context_parallel), true, accumulated",
    "zero: 3": "zero = 3: data_parallel = 1 has no other device to share with; allowed: "
    "data_parallel, context_parallel or expert_parallel of at least 2, or zero: 0",
    "zero: 0, reduce_dtype: float32": "reduce_dtype = 'float32': casts gradients of half precision",
}


@pytest.mark.parametrize("refused", REFUSED)
def test_runs_without_meaning_are_refused(sweep, refused):
    with pytest.raises(Exception, match="zero") as error:
        sweep(f"base: gpt-2-124m\nfixed: {{{refused}}}\npoints: [{{}}]\n")
    assert REFUSED[refused] in str(error.value)


def test_quantities_and_devices_without_shards_are_refused(sweep):
    text = "base: BASE\nfixed: {zero: 3, data_parallel: 2}\npoints: [{}]\nmeasure: MEASURE\n"
    for base, measure, reason in (
        ("gpt-2-124m", "{quantities: [cache_bytes]}", "zero = 3: cache_bytes is not known"),
        ("gpt-2-124m", "{device: cpu}", "measure.device = 'cpu': zero = 3 is measured without"),
        (
            "bert-base",
            "{quantities: [parameters]}",
            "zero = 3: the family encoder has no such setting; allowed: 0",
        ),
    ):
        with pytest.raises(Exception, match="zero") as error:
            sweep(text.replace("BASE", base).replace("MEASURE", measure))
        assert reason in str(error.value)


def test_the_matrix_of_a_projected_head_is_the_last_of_its_group():
    """Whose gradient is held while all are added up; that of the projection was."""
    sizes = {"n_vocab": 1000, "d_model": 64, "d_emb": 12, "tied": False, "d_ff": 8}
    a = Decoder(**SMALL | sizes)
    run = RunConfig(length=2, dtype="bfloat16", master_weights=True, data_parallel=2, zero=3)
    assert programmed(a, run) == measured(a, run)
