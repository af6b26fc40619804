"""Optimizers as data: their states against libraries, their steps against traces."""

import csv
import json
import math
import random
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from helpers.other_families import TINY_MODELS
from helpers.project import ROOT
from helpers.readings import in_first_row, of_graph, sizes, two_rows, words
from helpers.training import without_zeros

import modelbudget as mb
from modelbudget.architecture import optimizers
from modelbudget.architecture.evaluators import graph
from modelbudget.architecture.optimizers import optimizer_named, sizes_of
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.common.errors import InputError
from modelbudget.measurement.build import build
from modelbudget.measurement.step.torch_optimizer import TorchOptimizers
from modelbudget.measurement.step.train import train
from modelbudget.modules.initialise import uninitialised
from modelbudget.predict.predict import predict
from modelbudget.quantities.training_step import training_step

INSTALLED = [
    name
    for name, path in optimizers.files().items()
    if path.parent.name in ("torch", "transformers")
]
KERNELS = ("single", "foreach", "fused")
QUANTITIES = ("optimizer_bytes", "peak_training_bytes")


def recorded() -> dict[str, list[dict[str, str]]]:
    rows = defaultdict(list)
    path = ROOT / "tests" / "golden" / "optimizer_states.csv"
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        rows[row["optimizer"]].append(row)
    return dict(rows)


RECORDED = recorded()


def of_one_tensor(name: str, shape: tuple[int, ...], dtype: str, rank: int = 128) -> int:
    """Bytes that an optimizer keeps for a tensor of a hidden layer, with tables."""
    optimizer, sizes = optimizer_named(name), sizes_of("layer.mlp.up", shape)
    run = SimpleNamespace(dtype=dtype, master_weights=False, optimizer_rank=rank)
    return optimizer.state_bytes(sizes, run) + optimizer.once(sizes)


@pytest.mark.parametrize("name", RECORDED)
def test_states_equal_those_of_the_library(name):
    """Of libraries that are not installed, only rows of scripts/dev/record_optimizer_states.py."""
    for row in RECORDED[name]:
        shape = tuple(map(int, row["shape"].split("x")))
        found = of_one_tensor(name, shape, row["dtype"], int(row["rank"] or 128))
        assert found == int(row["bytes"]), (name, row)


def test_what_has_no_recorded_row_says_so():
    for name in optimizers.NAMES:
        is_witnessed = optimizer_named(name).witness != "from source, not witnessed"
        assert is_witnessed == (name in RECORDED), name


@pytest.mark.parametrize("name", INSTALLED)
def test_random_shapes_against_the_installed_library(name):
    """Sizes of 1, more dimensions and dtypes that no recorded row has."""
    draw = random.Random(name)
    for dtype in ("float32", "bfloat16", "float64"):
        n_dim = 2 if name == "muon" else draw.choice([1, 2, 3, 4])
        shape = tuple(draw.choice([1, 2, 3, 7, 12]) for _ in range(n_dim))
        p = torch.nn.Parameter(torch.ones(shape, dtype=getattr(torch, dtype)))
        optimizer = TorchOptimizers([("layer.mlp.up", p)], RunConfig(optimizer=name))
        for _ in range(2):  # the first step makes all states
            p.grad = torch.ones_like(p)
            optimizer.step()
            held = {s.untyped_storage()._cdata: s.untyped_storage() for s in optimizer.states(p)}
            n_bytes = sum(one.nbytes() for one in held.values())
            assert n_bytes == of_one_tensor(name, shape, dtype), (shape, dtype)


@pytest.fixture(scope="module")
def mixed():
    """A decoder with vectors, matrices and stacked matrices, two alike in a row."""
    return mb.model(
        "mixtral-8x7b", n_layer=2, d_model=32, n_head=4, n_kv_head=2, d_head=8, d_expert=48,
        n_vocab=200, n_expert=3,
    ).architecture  # fmt: skip


def steps():
    """Each optimizer that is installed with each of its kernels; dtypes in turn.

    Names of cases have no number, which another optimizer would change.
    """
    dtypes = ({}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "master_weights": True})
    cases = [
        (name, kernel)
        for name in INSTALLED
        for kernel in KERNELS
        if kernel == "single" or optimizer_named(name).has_kernel(kernel)
    ]
    return [pytest.param(*case, dtypes[i % 3], id="-".join(case)) for i, case in enumerate(cases)]


@pytest.mark.parametrize(("name", "kernel", "settings"), steps())
def test_a_step_equals_its_trace(mixed, name, kernel, settings):
    """The temporary tensors of each step: data against torch's own optimizer, difference 0."""
    run = RunConfig(
        batch=1, length=4, optimizer=name, foreach=kernel == "foreach", fused=kernel == "fused",
        **settings,
    )  # fmt: skip
    with uninitialised():
        model = build(mixed, "meta", run.dtype)
    traced = train(model, run, {*QUANTITIES})
    program = training_step(type(mixed).program(), mixed, run)
    known = optimizer_named(name).has_kernel(kernel)
    assert known == ("second.optimizer" in program.peaks)
    peaks = {phase: traced["peak_training_bytes"][phase] for phase in program.peaks}
    assert peaks == program.peaks
    assert without_zeros(traced["optimizer_bytes"]) == dict(program.optimizer_bytes)
    for quantity, found in zip(QUANTITIES, (program.optimizer_bytes, peaks), strict=True):
        if mixed.has_formula_for(quantity, mixed, run):
            terms = mixed.terms(quantity, mixed, run)
            formula = {name: term.total for name, term in terms.items()}
            assert without_zeros(formula) == dict(found), quantity
        else:  # all states have a closed formula, and steps whose tensors have the sizes of others
            assert quantity == "peak_training_bytes"
            assert name in ("adafactor", "muon") or (name, kernel) in (
                ("asgd", "foreach"), ("rprop", "foreach"),
            )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("adamw", {"dtype": "bfloat16", "recompute": "full"}),
        ("adamw", {"foreach": True}),
        ("adafactor", {"foreach": True, "dtype": "bfloat16"}),
        ("muon", {}),
    ],
)
def test_a_step_in_the_backward_pass_equals_its_trace(mixed, name, settings):
    """Hooks of torch update each parameter and free its gradient: peaks of the passes alone."""
    run = RunConfig(length=4, optimizer=name, optimizer_in_backward=True, **settings)
    with uninitialised():
        model = build(mixed, "meta", run.dtype)
    traced = train(model, run, {*QUANTITIES})
    program = training_step(type(mixed).program(), mixed, run)
    assert traced["peak_training_bytes"] == program.peaks
    assert without_zeros(traced["optimizer_bytes"]) == dict(program.optimizer_bytes)
    assert not without_zeros(traced["gradient_bytes"])
    assert not program.gradient_bytes


@pytest.mark.parametrize("name", ["T5", "BART"])
def test_muon_leaves_the_positions_of_both_stacks_to_adamw(name):
    a, run = TINY_MODELS[name], RunConfig(length=4, optimizer="muon")
    with uninitialised():
        traced = train(build(a, "meta", run.dtype), run, {*QUANTITIES})
    program = training_step(type(a).program(), a, run)
    assert traced["peak_training_bytes"] == program.peaks
    assert without_zeros(traced["optimizer_bytes"]) == dict(program.optimizer_bytes)


def test_a_step_in_the_backward_pass_of_tokens_one_by_one():
    """Nine tokens, of which one stands for five: an update follows the last of its gradients."""
    a = TINY_MODELS["Zamba2"]
    run = RunConfig(length=9, optimizer_in_backward=True)
    with uninitialised():
        traced = train(build(a, "meta", run.dtype), run, {"peak_training_bytes"})
    assert training_step(type(a).program(), a, run).peaks == traced["peak_training_bytes"]


def test_a_step_in_the_backward_pass_is_refused_where_nobody_traced_it():
    with pytest.raises(InputError, match="the temporary tensors of its step were not traced"):
        RunConfig(optimizer="adamw-8bit", optimizer_in_backward=True)
    with pytest.raises(InputError, match="not known yet with master_weights: true"):
        RunConfig(dtype="bfloat16", master_weights=True, optimizer_in_backward=True)


@pytest.mark.parametrize(
    "name", ["adamw-8bit", "adamw-4bit", "galore", "soap", "muon", "came", "adam-mini"]
)
def test_states_in_other_readings_are_those_of_one_model(mixed, name):
    """Conditions on sizes are columns and nodes there: 4,096 numbers are between rows here."""
    run = RunConfig(optimizer=name, optimizer_rank=20)
    for a in (mixed, mixed.model_copy(update={"d_model": 64, "d_expert": 64})):
        terms = a.terms("optimizer_bytes", a, run)
        alone = {name: term.total for name, term in terms.items() if term.total}
        table = predict(two_rows(a, run), ["optimizer_bytes"])
        assert without_zeros(in_first_row(table, "optimizer_bytes")) == alone
        nodes = (graph.namespace(type(one), words(one)) for one in (a, run))
        expression = total(type(a).optimizer_bytes(*nodes))
        assert of_graph(expression, sizes(a) | sizes(run)) == sum(alone.values())
        program = training_step(type(a).program(), a, run, n_steps=1)
        assert dict(program.optimizer_bytes) == alone


def test_an_eight_bit_step_is_refused_and_the_passes_are_not():
    """Nobody traced it: its phases are absent, and the answer has a line that says so."""
    model = mb.model("gpt-2-124m")
    found = model.predictions(["gradient_bytes", *QUANTITIES], {"optimizer": "adamw-8bit"})
    phases = {one.name for one in found["peak_training_bytes"].components}
    assert phases == {"first.forward_backward", "second.forward_backward"}
    (line,) = [one for one in found.notes if one.startswith("optimizer adamw-8bit")]
    assert (
        "2.04 bytes a parameter that is trained; the temporary tensors of its step were not traced"
        in line
    )
    part = {"zero": 1, "data_parallel": 2, "master_weights": True, "gradient_casts": "accumulated"}
    for name, is_of_matrices in (("muon", True), ("lion", False)):
        run = part | {"optimizer": name, "dtype": "bfloat16"}
        notes = model.predictions(["gradient_bytes", "optimizer_bytes"], run).notes
        assert is_of_matrices == any("in which it has no matrices" in note for note in notes)
    n = found["gradient_bytes"].total // 2
    assert found["optimizer_bytes"].total == pytest.approx(2 * n * (1 + 4 / 256), rel=0.01)


def test_states_that_depend_on_sizes_are_refused_where_devices_divide_tensors():
    with pytest.raises(InputError, match="optimizer = muon: its states depend on the sizes"):
        RunConfig(optimizer="muon", zero=3, data_parallel=2)
    assert RunConfig(optimizer="lion", zero=3, data_parallel=2).optimizer == "lion"


def test_an_unknown_optimizer_has_near_names():
    with pytest.raises(
        InputError, match=r"optimizer = 'adafacter': unknown; did you mean adafactor"
    ):
        RunConfig(optimizer="adafacter")


def test_a_library_that_is_not_installed_is_named(mixed):
    with pytest.raises(InputError, match=r"adamw-fp8: torchao 0\.18\.0 is not installed here"):
        train(build(mixed, "meta", "float32"), RunConfig(optimizer="adamw-fp8"), {*QUANTITIES})


def test_passes_are_measured_where_the_library_is_not_installed():
    """What needs no step of the optimizer is, and what is not is no failure."""
    found = mb.model("gpt-2-124m", n_layer=2).measure(
        {"optimizer": "lion", "length": 8}, ["gradient_bytes", *QUANTITIES]
    )
    ((reason, quantities),) = found.by_reason("failure").items()
    assert "lion-pytorch 0.2.5 is not installed here" in reason
    assert set(quantities) == {*QUANTITIES}
    assert not found.failed
    assert found.differences.is_empty()


def test_galore_is_smaller_than_its_paper_by_no_projector_in_half_precision():
    """Closed form of the paper (Zhao et al. 2024, §4): 2 · r · longer + r · shorter, by hand."""
    assert of_one_tensor("galore", (1000, 3000), "bfloat16", 16) == 2 * 16 * (2 * 3000 + 1000)
    assert of_one_tensor("galore", (1000, 3000), "float32", 16) == 4 * (2 * 16 * 3000 + 1000**2)
    assert of_one_tensor("galore", (1000,), "float32", 16) == 8 * math.prod((1000,))


def test_passes_of_a_class_are_traced_where_the_library_is_not_installed(tmp_path):
    """A setting that named the class had no training value; a file has our modules' answer."""
    keys = {"model_type": "mixtral", "sliding_window": 8, "num_hidden_layers": 1} | {
        "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2,
        "num_key_value_heads": 2, "num_local_experts": 2, "max_position_embeddings": 32,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(keys))
    run, quantities = {"optimizer": "lion", "length": 8}, ["gradient_bytes", *QUANTITIES]
    model = mb.model(tmp_path)
    of_class = model.predictions(quantities, run | {"implementation": "transformers"})
    n_parameters = model.parameters().total
    assert of_class["gradient_bytes"].total == 2 * n_parameters
    assert of_class.missing.keys() == {*QUANTITIES}
    for reason in of_class.missing.values():
        assert reason.endswith("optimizer = lion: lion-pytorch 0.2.5 is not installed here")
    assert not model.predictions(quantities, run).missing
