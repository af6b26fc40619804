"""What one stage of a pipeline holds: formulas against torch's own schedules on a fake process
group, and those against processes that communicate.
"""

from itertools import cycle

import polars as pl
import pytest
from helpers.devices import COMPARED, compared, measured, predicted, programmed
from helpers.gloo import steps_of_all_ranks
from helpers.readings import in_first_row
from helpers.tiers import some
from helpers.training import without_zeros

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.parallel.rank import of_rank
from modelbudget.predict.predict import predict
from modelbudget.quantities import pipelined_step
from modelbudget.sweeps.derive import named_architecture

SMALL = {"n_vocab": 1003, "d_model": 36, "n_layer": 8, "n_head": 2, "n_kv_head": 2, "d_head": 16}
SMALL |= {"d_ff": 100, "n_ctx": 64}
LLAMA = {"tied": False, "position": "rotary", "norm": "rmsnorm", "gated": True}
EXPERTS = {"mlps": "moe", "n_expert": 5, "n_expert_per_token": 2, "d_expert": 24, "d_shared": 6}
LATENT = {"mixers": "mla", "kv_lora_rank": 10, "q_lora_rank": 7, "d_rope": 8, "d_nope": 8}
SHAPES = {
    "GPT-2": {"query_bias": True, "up_bias": True, "norm_bias": True, "head_bias": True},
    "Llama": LLAMA | {"n_kv_head": 1},
    "large layers": {"n_vocab": 30, "d_ff": 900},
    "PaLM": {"parallel": True, "gated": True, "position": "rotary", "n_kv_head": 1},
    "Gemma 2": LLAMA | {"norm_placement": "both", "qk_norm": "separate", "tied": True},
    "ALBERT's embedding": {"d_emb": 12, "embedding_norm": True, "final_norm": False},
    "experts": LLAMA | EXPERTS,
    "latent attention": LLAMA | LATENT | {"d_value": 10},
}
MEGATRON = {"master_weights": True, "gradient_casts": "accumulated"}
RUNS = [
    {"batch": 4, "length": 2, "master_weights": True, "dtype": "bfloat16"},
    {"batch": 8, "length": 4, "dtype": "bfloat16"} | MEGATRON,
    {"batch": 4, "length": 32},
    {"batch": 8, "length": 16, "recompute": "full"},
    {"batch": 8, "length": 2, "recompute": "full", "dropout": True},
    {"batch": 8, "length": 16, "dtype": "bfloat16", "attention_kernel": "math", "dropout": True},
    {"batch": 4, "length": 16, "backend": "cpu", "optimizer": "momentum"},
    {"batch": 4, "length": 16, "foreach": True, "recompute": "selective"},
    {"batch": 4, "length": 8, "outputs": "kept", "loss_dtype": "float32"},
]
PIPELINES = [
    (4, 4, "1f1b", "middle"),
    (2, 4, "gpipe", "last"),
    (2, 4, "1f1b", "first"),
    (8, 2, "gpipe", "middle"),
    (2, 4, "1f1b", "last"),
    (2, 4, "gpipe", "first"),
    (4, 4, "1f1b", "first"),
    (8, 1, "gpipe", "last"),
    (4, 4, "gpipe", "middle"),
]


INTERLEAVED = [
    (4, 4, 2, "first"),
    (2, 4, 2, "last"),
    (2, 4, 4, "first"),
    (4, 4, 2, "middle"),
    (2, 8, 2, "first"),
    (4, 4, 2, "last"),
    (4, 2, 2, "second"),
    (2, 4, 4, "last"),
]
"""Devices, microbatches, stages on each device, and the device."""


def pipeline(stages: int, microbatches: int, schedule: str, rank: str, **settings) -> RunConfig:
    of_pipeline = {"n_microbatch": microbatches, "pipeline_schedule": schedule}
    return RunConfig(pipeline_parallel=stages, pipeline_rank=rank, **of_pipeline, **settings)


def interleaved(devices: int, microbatches: int, stages: int, rank: str, **settings) -> RunConfig:
    settings |= {"virtual_stages": stages}
    return pipeline(devices, microbatches, "interleaved_1f1b", rank, **settings)


def agree(a: Decoder, run: RunConfig) -> None:
    """Compare formula and program with torch's schedule, which runs every pass."""
    found = measured(a, run)
    assert programmed(a, run) == found, run
    assert predicted(a, run).items() <= found.items(), run


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_stage_holds_is_predicted(name):
    """Each shape in half of the runs, and each run with half of the shapes; half of these."""
    a, number = Decoder(**SMALL | SHAPES[name]), list(SHAPES).index(name)
    runs = some(RUNS[number % 2 :: 2], 2, number // 2)
    for settings, of_pipeline in zip(runs, cycle(PIPELINES[number:]), strict=False):
        run = pipeline(*of_pipeline, **settings)
        agree(a, run)


@pytest.mark.parametrize("number", range(len(INTERLEAVED)))
def test_what_a_device_with_several_stages_holds_is_predicted(number):
    a, settings = Decoder(**SMALL | list(SHAPES.values())[number]), RUNS[number] | {"batch": 8}
    run = interleaved(*INTERLEAVED[number], **settings)
    agree(a, run)


def test_results_that_a_checkpoint_keeps_end_with_their_microbatch():
    """A trace took what later had the address of a kept result for the result."""
    settings = {"dtype": "bfloat16", "attention_kernel": "efficient", "recompute": "selective_op"}
    agree(Decoder(**SMALL | LLAMA), pipeline(2, 4, "1f1b", "last", batch=8, length=8, **settings))


def test_transformers_code_in_a_pipeline_is_predicted():
    """Norms that copy their input do not save the buffer in which it was received."""
    a = Decoder(**SMALL | LLAMA)
    settings = {"dtype": "bfloat16", "norm_kernel": "written_out", "projections": "packed"}
    for of_pipeline in PIPELINES[:4]:
        run = pipeline(*of_pipeline, batch=4, length=16, gate_and_up="packed", **settings)
        agree(a, run)


@pytest.mark.parametrize("tables", ["model", "complex"])
def test_layers_of_each_stage_have_tables_of_rope(tables):
    a = Decoder(**SMALL | LLAMA)
    cases = list(zip(PIPELINES[:4], cycle(["none", "full"]), strict=False))
    for of_pipeline, recompute in some(cases, 2, tables == "model"):
        settings = {"dtype": "bfloat16", "rope_tables": tables, "recompute": recompute}
        run = pipeline(*of_pipeline, batch=4, length=16, **settings)
        agree(a, run)
    for rank in ("first", "last"):
        run = interleaved(2, 4, 2, rank, batch=4, length=16, dtype="bfloat16", rope_tables=tables)
        agree(a, run)


@pytest.mark.parametrize("dtype", ["dtype", "float32"])
def test_shards_of_a_stage_add_gradients_up(dtype):
    """Of few microbatches the peak is where the gradients are reduced."""
    a = Decoder(**SMALL | LLAMA | {"n_vocab": 6000})
    run = {"zero": 2, "data_parallel": 2, "reduce_dtype": dtype, "dtype": "bfloat16", "length": 8}
    for of_pipeline in ((2, 1, "gpipe", "first"), (2, 4, "1f1b", "last"), (4, 4, "gpipe", "last")):
        one = pipeline(*of_pipeline, batch=4, master_weights=True, **run)
        agree(a, one)


@pytest.mark.parametrize("settings", [{}, {"loss_dtype": "float32", "outputs": "kept"}])
def test_a_stage_may_write_the_gradient_over_its_logits(settings):
    a = Decoder(**SMALL | LLAMA | {"n_vocab": 3000})
    run = {"batch": 4, "length": 8, "dtype": "bfloat16", "loss_kernel": "in_place"}
    for of_pipeline in ((2, 4, "gpipe", "last"), (2, 2, "1f1b", "last")):
        one = pipeline(*of_pipeline, **run, **MEGATRON, **settings)
        agree(a, one)


@pytest.mark.parametrize("name", ["gpt-2-124m", "llama-3-8b"])
def test_published_models_in_a_pipeline(catalogue, name):
    a = named_architecture(catalogue[name])
    settings = {"dtype": "bfloat16", "attention_kernel": "flash", "length": 512, "batch": 8}
    for of_pipeline in ((2, 8, "1f1b", "last"), (4, 4, "1f1b", "first")):
        run = pipeline(*of_pipeline, **settings)
        assert predicted(a, run) == measured(a, run), run


def saved(a: Decoder, run: RunConfig) -> dict[str, int]:
    _, values = of_rank(a, run, {"activation_bytes"})
    return without_zeros(values["activation_bytes"])


def test_1f1b_saves_as_much_as_there_are_stages_to_come():
    """Narayanan et al. 2021, §2.2: at most p − i microbatches on stage i, with GPipe all."""
    a = Decoder(**SMALL | LLAMA)
    for rank, in_flight in (("first", 4), ("middle", 2), ("last", 1)):
        gpipe, in_turn = (
            saved(a, pipeline(4, 8, schedule, rank, batch=8, length=8))
            for schedule in ("gpipe", "1f1b")
        )
        layers = [one for one in gpipe if one.startswith("layer.")]
        assert len(layers) == 9
        assert all(8 * in_turn[one] == in_flight * gpipe[one] for one in layers)


def test_interleaved_stages_save_more():
    """Korthikanti et al. 2022, §4.2.3: 1 + (p − 1) / (p v) times as much on the first device."""
    a = Decoder(**SMALL | LLAMA)
    in_turn = saved(a, pipeline(4, 8, "1f1b", "first", batch=8, length=8))
    several = saved(a, interleaved(4, 8, 2, "first", batch=8, length=8))
    layers = [one for one in in_turn if one.startswith("layer.")]
    assert len(layers) == 9
    assert all(8 * several[one] == (8 + 3) * in_turn[one] for one in layers)


def test_a_tied_matrix_is_on_both_ends():
    a = Decoder(**SMALL)
    stages = [pipeline(2, 1, "gpipe", rank, length=8) for rank in ("first", "last")]
    held = [sum(t.total for t in a.parameter_bytes(a, run).values()) for run in stages]
    n_parameters = sum(term.total for term in a.parameters(a).values())
    assert sum(held) == 4 * (n_parameters + 1003 * 36)


BY_PROGRAM = {
    "experts after three layers": LLAMA | EXPERTS | {"n_dense_layer": 3},
    "experts in every third layer": LLAMA | EXPERTS | {"mlps": "moe mlp mlp"},
    "post-norm": {"norm_placement": "post"},
    "norms of outputs": LLAMA | {"norm_placement": "output"},
    "windows": LLAMA | {"mixers": "sliding_attention attention", "window": 4},
    "DeepSeek": LLAMA | EXPERTS | LATENT | {"d_value": 10, "n_dense_layer": 1},
}


@pytest.mark.parametrize("name", BY_PROGRAM)
def test_stages_without_a_formula_are_predicted_by_program(name):
    """Only this sees which layers a stage has, where they differ."""
    a, number = Decoder(**SMALL | BY_PROGRAM[name]), list(BY_PROGRAM).index(name)
    shards = {"zero": 2 + number % 2, "data_parallel": 3, "data_rank": "last"}
    runs = (
        pipeline(*PIPELINES[number], batch=8, length=8),
        interleaved(*INTERLEAVED[number], batch=8, length=8, recompute="full"),
        pipeline(*PIPELINES[2 - number % 2], batch=8, length=16, **shards),
    )
    for run in some(runs, 2, number):
        assert not a.has_formula_for("peak_training_bytes", a, run)
        assert programmed(a, run) == measured(a, run), run


@pytest.mark.parametrize(("zero", "dtype"), [(2, "dtype"), (3, "dtype"), (3, "float32")])
def test_shards_of_a_stage_are_gathered_by_program(zero, dtype):
    """With zero: 3, each forward pass after a backward pass frees what that had gathered."""
    a = Decoder(**SMALL | LLAMA | {"tied": True})
    run = {"zero": zero, "data_parallel": 2, "reduce_dtype": dtype, "dtype": "bfloat16"}
    pipelines = ((2, 4, "1f1b", "first"), (4, 4, "1f1b", "last"), (4, 2, "gpipe", "middle"))
    for number, of_pipeline in some([*enumerate(pipelines)], 2, dtype == "float32"):
        one = pipeline(
            *of_pipeline, batch=4, length=8, recompute=("full", "none")[number % 2], **run
        )
        assert programmed(a, one) == measured(a, one), one


@pytest.mark.parametrize("number", range(3))
def test_interleaved_stages_are_gathered_ahead(number):
    """Three stages at most; of four, one is freed for the next."""
    a = Decoder(**SMALL | LLAMA)
    of_pipeline = ((2, 4, 2, "last"), (2, 2, 4, "first"), (4, 4, 2, "middle"))[number]
    run = {"zero": 3 - number % 2, "data_parallel": 2, "batch": 4, "length": 8, "dtype": "bfloat16"}
    one = interleaved(*of_pipeline, reduce_dtype=("float32", "dtype")[number % 2], **run)
    assert programmed(a, one) == measured(a, one)


def test_more_microbatches_repeat_the_passes_of_few():
    """A program runs each kind of pass once, and torch all: 12 microbatches, or 40 passes."""
    a = Decoder(**SMALL | LLAMA | {"n_vocab": 90})
    for run in (
        pipeline(2, 12, "1f1b", "last", batch=12, length=4, outputs="kept"),
        pipeline(8, 12, "1f1b", "second", batch=12, length=4),
        pipeline(4, 12, "gpipe", "first", batch=12, length=4),
        interleaved(2, 10, 4, "last", batch=20, length=4),
    ):
        assert programmed(a, run) == measured(a, run), run


def test_the_optimizer_has_its_gradients_from_the_run_of_the_passes():
    """Of a stage with as many equal layers as that of a large model."""
    a = Decoder(**SMALL | LLAMA | {"n_layer": 32})
    for cached in (pipelined_step._passes, pipelined_step._steps, pipelined_step._run_passes):
        cached.cache_clear()
    programmed(a, pipeline(2, 4, "1f1b", "first", batch=4, length=8))
    assert pipelined_step._run_passes.cache_info().misses == 1


def test_columns_equal_integers():
    a = Decoder(**SMALL)
    runs = [
        pipeline(4, 4, "1f1b", "middle", batch=8, length=8),
        pipeline(2, 4, "gpipe", "last", batch=8, length=8),
        *(interleaved(4, 4, 2, rank, batch=8, length=8) for rank in ("first", "middle", "last")),
    ]
    for run in runs:
        row = {"architecture": "it", "run": "so", "family": "decoder"}
        row |= a.model_dump() | run.model_dump()
        another = {"architecture": "another", "n_layer": 16, "pipeline_parallel": 8}
        another |= {"n_microbatch": 8, "batch": 16, "length": 4, "d_model": 40, "tied": False}
        table = predict(pl.DataFrame([row, row | another]), COMPARED)
        found = programmed(a, run)
        for quantity in COMPARED:
            assert in_first_row(table, quantity) == found[quantity], quantity


@pytest.mark.parametrize("n_stage", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_that_communicate_hold_the_same(tmp_path, n_stage):
    """At the peak, gloo may also hold what was sent last to each neighbour; all else is equal.

    Where stages are interleaved, torch keeps all sends to the end of the step, and gloo with them.
    """
    a = Decoder(**SMALL | SHAPES["GPT-2"])
    states = 4 * 16 * a.d_model
    for schedule, several in (("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)):
        settings = {"virtual_stages": several, "batch": 4, "length": 16, "backend": "cpu"}
        run = pipeline(n_stage, 4, schedule, "first", **settings)
        (tmp_path / schedule).mkdir()
        ranks = steps_of_all_ranks(a, run, tmp_path / schedule)
        of_ranks = {"first": ranks[0], "middle": ranks[n_stage // 2], "last": ranks[-1]}
        for name in set(of_ranks) - ({"middle"} if n_stage == 2 else set()):
            expected = measured(a, run.model_copy(update={"pipeline_rank": name}))
            found = compared(of_ranks[name])
            peaks = found.pop("peak_training_bytes"), expected.pop("peak_training_bytes")
            assert found == expected, (schedule, name)
            neighbours = 2 if name == "middle" else 1
            most = states * (4 * (neighbours + 2) if several > 1 else neighbours)
            for phase, n_bytes in peaks[1].items():
                more = peaks[0][phase] - n_bytes
                assert more == 0 or phase.endswith("forward_backward"), (schedule, name, phase)
                assert 0 <= more <= most, (schedule, name, phase)


INTERLEAVED_2 = "pipeline_schedule: interleaved_1f1b, pipeline_parallel: 2"
REFUSED = {
    "pipeline_parallel: 2": "pipeline_parallel = 2: needs pipeline_schedule: gpipe, 1f1b or inter",
    "n_microbatch: 2, batch: 2, optimizer_in_backward: true, foreach: false": "n_microbatch = 2 "
    "without stages: not known yet with optimizer_in_backward: true",
    "virtual_stages: 2": "virtual_stages = 2: needs pipeline_schedule: interleaved_1f1b",
    f"{INTERLEAVED_2}": "virtual_stages = 1 has nothing to interleave; allowed: at least 2",
    f"{INTERLEAVED_2}, virtual_stages: 4": "virtual_stages = 4: pipeline_parallel = 2 times that "
    "must divide n_layer = 12",
    f"{INTERLEAVED_2}, virtual_stages: 2, n_microbatch: 7, batch: 7": "n_microbatch = 7: "
    "pipeline_parallel = 2 makes 3 rounds, which do not divide it",
    "pipeline_schedule: gpipe": "pipeline_schedule = 'gpipe': pipeline_parallel = 1 has no other",
    "pipeline_schedule: gpipe, pipeline_parallel: 5": "pipeline_parallel = 5: must divide "
    "n_layer = 12",
    "pipeline_schedule: gpipe, pipeline_parallel: 2, n_microbatch: 2": "n_microbatch = 2: must "
    "divide batch = 1",
    "pipeline_schedule: 1f1b, pipeline_parallel: 4, n_microbatch: 2, batch: 2": "n_microbatch = 2 "
    "keep no 4 stages busy",
    "pipeline_schedule: gpipe, pipeline_parallel: 2, pipeline_rank: middle": "pipeline_rank = "
    "'middle': pipeline_parallel = 2 has no such stage",
    "pipeline_schedule: gpipe, pipeline_parallel: 2, position: alibi": "position: alibi is made "
    "once",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_runs_without_meaning_are_refused(sweep, settings):
    with pytest.raises(Exception, match=r"pipeline|microbatch|virtual") as error:
        sweep(f"base: gpt-2-124m\nfixed: {{{settings}}}\npoints: [{{}}]\n")
    assert REFUSED[settings] in str(error.value)


def test_quantities_devices_and_families_without_stages_are_refused(sweep):
    text = "base: BASE\nfixed: {pipeline_schedule: gpipe, pipeline_parallel: 2}\npoints: [{}]\n"
    text += "measure: MEASURE\n"
    of_gpipe = "pipeline_schedule = 'gpipe'"
    for base, measure, reason in (
        ("gpt-2-124m", "{quantities: [cache_bytes]}", f"{of_gpipe}: cache_bytes is not known"),
        ("gpt-2-124m", "{device: cpu}", f"measure.device = 'cpu': {of_gpipe} is measured without"),
        (
            "bert-base",
            "{quantities: [parameters]}",
            f"{of_gpipe}: the family encoder has no such setting; allowed: none",
        ),
    ):
        with pytest.raises(Exception, match="pipeline") as error:
            sweep(text.replace("BASE", base).replace("MEASURE", measure))
        assert reason in str(error.value).replace("pipeline_schedule = gpipe", of_gpipe)


def test_a_deeper_stage_is_no_shallower_one():
    """Both run the same few layers by program, which stand for more of them in one of the two."""
    settings = {"pipeline_schedule": "interleaved_1f1b", "virtual_stages": 2}
    run = RunConfig(batch=4, length=8, pipeline_parallel=2, n_microbatch=4, **settings)
    caches = [value for value in vars(pipelined_step).values() if hasattr(value, "cache_clear")]

    def in_turn(*depths: int) -> dict[int, dict]:
        for cache in caches:
            cache.cache_clear()
        return {n: programmed(Decoder(**SMALL | LLAMA | {"n_layer": n}), run) for n in depths}

    assert in_turn(24, 48) == in_turn(24) | in_turn(48)
