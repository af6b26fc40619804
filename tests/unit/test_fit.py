"""What accelerators hold: solved by formulas, and true of the models themselves."""

import logging
import os
import re
import signal
import unittest
from pathlib import Path
from unittest.mock import Mock

import polars as pl
import pytest
import torch
from helpers.project import ROOT
from helpers.results import result

import modelbudget as mb
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.counting_conventions import BY_NAME
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.architecture.terms import total
from modelbudget.catalogue.accelerators import (
    Accelerator,
    accelerators,
    all_accelerators,
    named_or_sized,
)
from modelbudget.common import store
from modelbudget.common.errors import InputError
from modelbudget.compare.largest_measured import measure_solutions
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.cached_points import measure_new
from modelbudget.measurement.reference.class_trace import trace_class
from modelbudget.measurement.step.train import train
from modelbudget.measurement.trace.inference import infer
from modelbudget.modules.initialise import uninitialised
from modelbudget.predict import largest_that_fits
from modelbudget.predict.counts_by_convention import relative_error
from modelbudget.predict.largest_that_fits import (
    ENDLESS,
    SCHEMA,
    Solution,
    at,
    cells,
    fit_table,
    needed,
    solve,
)
from modelbudget.report.fit_tables import fits_section
from modelbudget.report.tables import environment
from modelbudget.sweeps.class_config import class_config
from modelbudget.sweeps.derive import named_architecture

GB = 10**9
FLASH = {"dtype": "bfloat16", "attention_kernel": "flash"}


def solvable(expanded) -> tuple:
    """What `cells` takes of a sweep."""
    return expanded.points, expanded.sweep.measure.quantities, expanded.sweep.fit


def measured(model, purpose: str) -> int:
    """Bytes that the torch model itself needs, traced without storage."""
    a, run = model
    with uninitialised():
        module = build(a, "meta", run.dtype)
    if purpose == "training":
        return max(train(module, run, {"peak_training_bytes"})["peak_training_bytes"].values())
    parameters = sum(p.untyped_storage().nbytes() for p in set(module.parameters()))
    return parameters + sum(infer(module, run, {"cache_bytes"})["cache_bytes"].values())


CASES = [
    ("gpt-2-124m", RunConfig(**FLASH), "batch", "training", 24 * GB),
    ("gpt-2-124m", RunConfig(optimizer="sgd"), "batch", "training", 40 * GB),
    ("gpt-2-1558m", RunConfig(length=512, **FLASH), "n_layer", "training", 9 * GB),
    ("llama-3-8b", RunConfig(optimizer="momentum", **FLASH), "length", "training", 141 * GB),
    (
        "palm-8b",
        RunConfig(length=256, master_weights=True, **FLASH),
        "n_layer",
        "training",
        80 * GB,
    ),
    ("llama-3-8b", RunConfig(length=8192, **FLASH), "batch", "weights_and_cache", 80 * GB),
    ("llama-3-8b", RunConfig(batch=7, **FLASH), "length", "weights_and_cache", 24 * GB),
    ("deepseek-v2-lite", RunConfig(dtype="bfloat16"), "length", "weights_and_cache", 40 * GB),
    ("deepseek-v2-lite", RunConfig(dtype="bfloat16"), "n_layer", "weights_and_cache", 40 * GB),
]


@pytest.mark.parametrize(("name", "run", "field", "purpose", "room"), CASES)
def test_the_model_itself_fits_and_the_next_does_not(catalogue, name, run, field, purpose, room):
    model = named_architecture(catalogue[name]), run
    value, beyond, bound = solve(model, field, purpose, room)
    assert beyond == value + 1 > 1
    assert bound is None
    assert measured(at(model, field, value), purpose) <= room
    assert measured(at(model, field, beyond), purpose) > room


def test_every_room_has_its_batch():
    """Against counting upwards, around each step."""
    a = Decoder(
        n_vocab=50, d_model=16, n_layer=2, n_head=2, n_kv_head=2, d_head=8, d_ff=32, n_ctx=9
    )
    model = a, RunConfig(length=5, optimizer="sgd")
    sizes = [needed(at(model, "batch", n), "training") for n in range(1, 40)]
    assert sizes == sorted(set(sizes))
    for room in [sizes[0] - 1, *(size + d for size in sizes for d in (-1, 0, 1)), sizes[20] + 7]:
        expected = sum(size <= room for size in sizes)
        if expected < len(sizes):
            assert solve(model, "batch", "training", room) == Solution(expected, expected + 1)


def test_few_predictions_find_the_largest(catalogue, monkeypatch):
    """A search that halves needs about thirty, each the run of a program for a class."""
    n_bytes = Mock(side_effect=needed)
    monkeypatch.setattr(largest_that_fits, "needed", n_bytes)
    model = named_architecture(catalogue["llama-3-8b"]), RunConfig(length=1024, **FLASH)
    for field in ("batch", "length"):
        solve(model, field, "training", 192 * GB)
        assert n_bytes.call_count <= 12
        n_bytes.reset_mock()


IN_STAGES = {"pipeline_parallel": 2, "pipeline_schedule": "gpipe", "n_microbatch": 6, "batch": 6}
DIVIDED = [
    ({"loss_chunks": 24, "targets": "given"}, "length", 24),
    ({"loss_chunks": 24, "length": 36, "batch": 2}, "batch", 2),
    ({"tensor_parallel": 4, "sequence_parallel": True}, "length", 4),
    (IN_STAGES, "batch", 6),
    (IN_STAGES, "n_layer", 2),
]


@pytest.mark.parametrize(("run", "field", "step"), DIVIDED)
def test_a_solution_is_what_the_run_divides(catalogue, run, field, step):
    a = named_architecture(catalogue["llama-3-8b"])
    model = a, RunConfig(**{"length": 48, "dtype": "bfloat16"} | run)
    room = 300 * 10**9
    solution = solve(model, field, "training", room)
    held, beyond = (at(model, field, n) for n in (solution.value, solution.value + step))
    assert solution.value % step == 0 < solution.value
    assert solution.beyond == solution.value + step
    assert run_mistake(*held) is None
    RunConfig.model_validate(held[1].model_dump())
    assert needed(held, "training") <= room < needed(beyond, "training")


def test_nothing_fits_and_nothing_is_solved_and_no_end(catalogue):
    palm = named_architecture(catalogue["palm-540b"]), RunConfig(**FLASH)
    assert solve(palm, "batch", "training", 192 * GB) == Solution(0, 1)
    gpt = named_architecture(catalogue["gpt-2-124m"]), RunConfig(**FLASH)
    assert solve(gpt, "length", "training", 192 * GB) == Solution(1024, None, "model")
    mla = named_architecture(catalogue["deepseek-v2-lite"]), RunConfig(rope_tables="model")
    assert solve(mla, "batch", "training", 192 * GB) is None
    sizes = {"n_vocab": 9, "d_model": 4, "n_layer": 1, "n_head": 1, "n_kv_head": 1, "d_head": 4}
    forgetful = Decoder(**sizes, d_ff=4, mixers="none", position="none")
    for field, chunks in (("batch", 1), ("length", 8)):  # also where values are multiples
        assert solve((forgetful, RunConfig(loss_chunks=chunks, length=1024)), field,
                     "weights_and_cache", GB) == Solution(ENDLESS - 1, None, "model")  # fmt: skip
    with pytest.raises(InputError, match="must be at most 10,000"):
        mb.model("llama-3-8b", n_layer=10_001).parameters()
    assert solve((forgetful, RunConfig()), "n_layer", "weights_and_cache", GB) == Solution(
        10_000, None, "model"
    )


def test_a_largest_length_is_the_same_at_whatever_length_it_is_asked():
    """In float32 torch has math for grouped heads; beyond the window a mask, and so another."""
    model = mb.model("mistral-7b-v0.1", n_layer=1, window=512, d_ff=256)

    def longest(**settings):
        fit = model.fit("4GB", settings, training=False)
        return fit.run.attention_kernel, fit.largest["length"].value

    of_short, of_long = longest(length=128, dtype="float32"), longest(length=2000, dtype="float32")
    assert (of_short[0], of_long[0]) == ("math", "efficient")
    assert of_short[1] == of_long[1] > 2000
    assert longest(length=128)[1] > of_long[1]


@pytest.mark.parametrize("name", ["t5-small", "bloom-560m"])
@pytest.mark.parametrize("room", [21, 26, 47])
def test_no_longer_sequence_fits_where_masks_are_copied(catalogue, name, room):
    """Between multiples of 8 memory-efficient attention copies them, and 8 more need less."""
    run = RunConfig(dtype="bfloat16", attention_kernel="efficient")
    model = named_architecture(catalogue[name]), run

    def fits(length: int) -> bool:
        return needed(at(model, "length", length), "training") <= room * GB

    copied, longer = (needed(at(model, "length", n), "training") for n in (1007, 1008))
    assert longer < copied
    value, beyond, _ = solve(model, "length", "training", room * GB)
    assert (fits(value), fits(beyond), beyond) == (True, False, value + 8)
    assert not any(map(fits, range(value + 8, value + 400, 8)))  # which alone copy nothing
    assert not any(map(fits, range(value + 1, value + 50, 6)))


def test_the_formula_may_end_before_the_memory_does(catalogue, monkeypatch):
    """Here it holds for at most 100 sequences, of which a device would hold 127."""
    has_formula_for = Decoder.has_formula_for

    def up_to_100(quantity, a, r):
        return has_formula_for(quantity, a, r) * (r.batch <= 100)

    monkeypatch.setattr(Decoder, "has_formula_for", staticmethod(up_to_100))
    monkeypatch.setattr(Decoder, "program", Architecture.program)
    model = named_architecture(catalogue["gpt-2-124m"]), RunConfig(master_weights=True, **FLASH)
    assert solve(model, "batch", "training", 80 * GB) == Solution(100, None, "formula")
    assert solve(model, "batch", "training", 40 * GB) == Solution(62, 63)


def test_a_sweep_asks_each_model_once(sweep):
    expanded = sweep(
        "base: llama-3-8b\nfixed: {dtype: bfloat16, attention_kernel: flash}\n"
        "grid: {length: [512, 1024], n_kv_head: [8, 1]}\nfit: [batch]\n"
        "measure: {quantities: [parameter_bytes, cache_bytes]}\n"
    )
    device = Accelerator(name="a device", bytes=24 * GB, source="a test")
    points, quantities, fields = solvable(expanded)
    of_each_length = list(cells(points, quantities, fields, [device]))
    assert len(of_each_length) == 4  # a length that is not solved for asks for its own batch
    both = cells(points, quantities, ["batch", "length"], [device])
    found = [cell for cell in of_each_length if cell.point.run.length == 1024]
    assert [cell.point.label for cell in found] == [
        "length = 1024, n_kv_head = 8",
        "length = 1024, n_kv_head = 1",
    ]
    assert {cell.point.label for cell in both} == {cell.point.label for cell in found}
    purpose = "weights_and_cache"
    right = {(purpose, found[0].largest): 24 * GB, (purpose, found[0].beyond): 24 * GB + 1}
    wrong = {(purpose, found[1].largest): 24 * GB + 1}
    table = fit_table(found, right | wrong, {})
    assert table["confirmed"].to_list() == [True, False]
    assert fit_table(found, {}, {})["confirmed"].to_list() == [None, None]
    # A key and a value of 128 numbers in 2 bytes, in 32 layers of 8 heads, for 1,024 tokens.
    cache = 2 * 128 * 2 * 32 * 8 * 1024
    assert table["value"][0] == (24 * GB - 2 * 8_030_261_248) // cache
    assert table["bytes_beyond"][0] == table["bytes"][0] + cache


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fit: [batch]\nmeasure: {quantities: [parameters]}", "fit: needs peak_training_bytes"),
        ("fit_measured_on: [H100]", "fit_measured_on: needs fit"),
        ("fit: [width]\nmeasure: {quantities: [peak_training_bytes]}", "fit[0] = 'width'"),
    ],
)
def test_what_a_sweep_cannot_solve(sweep, text, message):
    with pytest.raises(InputError) as wrong:
        sweep(f"base: gpt-2-124m\npoints: [{{}}]\n{text}\n")
    assert message in str(wrong.value)


def test_shipped_accelerators():
    devices = accelerators(ROOT / "configs" / "accelerators.yaml")
    assert [device.bytes // GB for device in devices] == [25, 42, 84, 150, 206]
    assert {device.name for device in devices} < {device.name for device in KNOWN}
    assert all(device == named_or_sized(device.name, KNOWN) for device in devices)


KNOWN = all_accelerators(ROOT / "configs" / "accelerators.yaml")


def test_shipped_names_mean_the_bytes_of_their_driver():
    """By a name with memory and without; a report is within a tenth of the data sheet."""
    assert len(KNOWN) >= 20
    for device in KNOWN:
        found = named_or_sized(device.name.lower().replace(" ", "-"), KNOWN)
        assert found == device.as_reported() == named_or_sized(f"{device.name}", KNOWN)
        if device.driver_gib is not None and not device.name.startswith("Apple"):
            assert found.bytes == int(device.driver_gib * 2**30)
            assert found.source == device.driver_source
            assert found.bytes == pytest.approx(device.bytes, rel=0.1)
        elif device.driver_gib is None:
            assert found == device
    assert named_or_sized("h100-80gb", KNOWN).bytes == 84_943_715_696
    assert named_or_sized("a100-40gb", KNOWN).name == named_or_sized("a100", KNOWN).name == "A100"
    assert named_or_sized("a100-80gb", KNOWN).name == "A100 80GB"
    assert named_or_sized("NVIDIA GeForce RTX 3060", KNOWN).name == "RTX 3060"
    assert named_or_sized("3060 12GB", KNOWN).name == "RTX 3060"
    with pytest.raises(ValueError, match="did you mean h100-80gb"):
        named_or_sized("H100 SXM", KNOWN)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("24GB", 24 * 10**9),
        ("24GiB", 24 * 2**30),
        ("23.65 gib", 25_393_994_137),
        ("1.5TB", 15 * 10**11),
        ("500MiB", 500 * 2**20),
        ("80_000kB", 80_000_000),
        ("17B", 17),
    ],
)
def test_a_size_in_bytes(text, n_bytes):
    device = named_or_sized(text, KNOWN)
    assert (device.bytes, device.source) == (n_bytes, "as given")


@pytest.mark.parametrize("text", ["0GB", "0", "24 GBs", "-1GB", "1e3GB", "9" * 30 + "GB", ""])
def test_what_is_no_size_and_no_name(text):
    with pytest.raises(ValueError, match=r"such as 24GB or 24GiB, .*; all \d+ are in configs"):
        named_or_sized(text, KNOWN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accelerators: []", "accelerators = []"),
        ("accelerators: [{name: a, byte: 3}]", "byte: unknown key; did you mean bytes?"),
        ("accelerators: [{name: a, bytes: 80e9, source: b}]", "write 80000000000"),
        ("accelerators: [{name: a, bytes: 0, source: b}]", "bytes = 0: must be at least 1"),
        (
            "accelerators: [{name: a, bytes: 1, source: b}, {name: c, bytes: 1, source: d}]",
            "accelerators[1].bytes = 1: is that of accelerators[0] too",
        ),
        (
            "accelerators: [{name: a b, bytes: 1, source: b}, {name: AB, bytes: 2, source: d}]",
            "accelerators[1].name = 'AB': is that of accelerators[0] too",
        ),
        (
            "accelerators: [{name: a, bytes: 1, source: b, driver_gib: 2.5}]",
            "driver_gib = 2.5, driver_source = '': allowed: both or none",
        ),
        ("accelerators: [{name: a, bytes: 1, source: b, in_charts: false}]", "none is in charts"),
    ],
)
def test_a_wrong_file_of_accelerators(tmp_path: Path, text, message):
    path = tmp_path / "accelerators.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as wrong:
        accelerators(path)
    assert f"{path}: " in str(wrong.value)
    assert message in str(wrong.value)


def test_three_grades_with_a_reserve_and_the_worst_reading():
    """GPT-2 124M for a token: the smallest device that fits, by hand, and one byte less."""
    model, settings = mb.model("gpt-2-124m"), {"length": 1}
    n_bytes = model.fit("80GB", settings).needed
    reserve = 1343 * 2**20
    with_margins = -(-n_bytes * 128 // 100) + reserve
    for memory, grade in (
        (with_margins + 1, "fits"),
        (with_margins - 2, "tight"),
        (n_bytes, "tight"),
        (n_bytes - 1, "does not fit"),
    ):
        found = model.fit(f"{memory}B", settings)
        assert (found.grade, found.fits) == (grade, memory >= n_bytes)
        assert (found.as_dict()["reserve"], found.as_dict()["worst_ratio"]) == (reserve, 1.28)
    mac = model.fit("apple-16gb", settings)  # 10.66 GiB that Metal recommends for buffers alone
    assert mac.as_dict()["reserve"] == 0
    assert mac.margins.room(128) == 100
    assert model.fit("apple-16gb", settings, reserve=7).as_dict()["reserve"] == 7
    two = model.fit("80GB", settings, reserve="2GB")
    assert two.as_dict()["reserve"] == two.margins.reserve.bytes == 2 * 10**9
    batch = two.largest_with_margins["batch"].value
    for n, grade in ((batch, "fits"), (batch + 1, "tight")):
        assert model.fit("80GB", settings | {"batch": n}, reserve=2 * 10**9).grade == grade
    for wrong in ("2", ""):
        with pytest.raises(InputError, match=f"`reserve={wrong!r}`: no size in bytes"):
            model.fit("80GB", settings, reserve=wrong)
    for wrong in (-1, 2.5, True):
        with pytest.raises(InputError, match=f"reserve = {str(wrong).lower()}: allowed: bytes"):
            model.fit("80GB", settings, reserve=wrong)


def test_palm_on_a_trillion_tokens_does_not_wrap(catalogue):
    palm = named_architecture(catalogue["palm-540b"])
    parameters = palm.parameters(palm)
    assert BY_NAME["6n"].value(parameters, palm, 2048) * 10**12 == 3_242_138_849_280 * 10**12
    wrapped = pl.Series([540_356_474_880]) * 6 * 10**12
    assert wrapped[0] != 3_242_138_849_280 * 10**12
    assert (
        BY_NAME["without_embeddings"].value(parameters, palm, 0)
        == 540_356_474_880 - 256_000 * 18_432
    )
    run = RunConfig(length=2048, **FLASH)
    step = total(palm.flops_forward(palm, run)) + total(palm.flops_backward(palm, run))
    # 6 for each number of a matrix, tied head included; of norms none; attention's core 4 forward
    # and 10 backward for each of 48 × 256 channels, 2,048 tokens back, in 118 layers.
    in_norms = 119 * 18_432
    core = 14 * 2048 * 48 * 256 * 118
    assert step == 2048 * (6 * (540_356_474_880 - in_norms) + core)
    assert relative_error(6 * 540_356_474_880 * 2048, step) == pytest.approx(
        (6 * in_norms - core) / (6 * (540_356_474_880 - in_norms) + core)
    )


def test_the_pipeline_solves_measures_and_follows_the_file_of_accelerators(make_project):
    project = make_project()
    text = (
        "base: gpt-2-124m\nfixed: {n_layer: 1, length: 512}\n"
        "grid: {batch: [1, 2, 4, 8]}\nfit: [batch]\n"
        "measure: {device: meta, quantities: [peak_training_bytes]}\n"
    )
    project.write_sweep("small.yaml", text)
    project.write_sweep("two.yaml", f"{text}fit_measured_on: [a100, h200]\n")
    results, devices = (project.folder / name for name in ("results/small", "configs"))
    made = [f"results/small/{name}" for name in ("fit.parquet", "charts")]
    run = project.snakemake(*made, "results/two/fit.parquet")
    assert run.returncode == 0, run.stderr
    table = pl.read_parquet(results / "fit.parquet")
    of_two = pl.read_parquet(project.folder / "results/two/fit.parquet")
    is_measured = pl.col("device").is_in(["A100", "H200"])
    assert of_two.filter(is_measured).equals(table.filter(is_measured))
    assert of_two.filter(~is_measured)["measured"].to_list() == [None] * 3
    assert of_two["value"].equals(table["value"])
    assert table["confirmed"].to_list() == [True] * 5
    assert table["value"].is_sorted()
    assert (table["measured"] <= table["memory"]).all()
    assert (table["measured_beyond"] > table["memory"]).all()
    assert table["measured"].equals(table["bytes"])

    path = devices / "accelerators.yaml"
    path.write_text(path.read_text().replace("driver_gib: 23.64", "driver_gib: 15.64"))
    again = project.snakemake("-n", *made).stdout
    assert "small: solve for the largest models that fit on each accelerator" in again
    assert "Save the charts of all sweeps" in again
    assert "small: instantiate" not in again

    path.write_text(path.read_text().replace("24_000_000_000", "24e9"))
    stopped = project.snakemake("-n", *made)
    assert stopped.returncode != 0
    assert "accelerators[0].bytes = '24e9': must be a whole number" in stopped.stderr
    assert "Traceback" not in stopped.stderr


FITTED = """
base: gpt-2-124m
fixed: {n_layer: 1, n_vocab: 64, n_ctx: 16, n_head: 2, d_head: 8}
grid: {d_model: [16]}
measure: {quantities: [parameter_bytes, cache_bytes, peak_training_bytes], device: meta}
fit: [batch]
"""


def logged_by_store():
    """Record what the cache logs in a block."""
    return unittest.TestCase().assertLogs(store.__name__, logging.INFO)


def test_a_solution_is_measured_once(sweep, tmp_path):
    """For five devices the last batch that fits and the first that does not, in training and in
    use. A changed sweep measures what is new of them.
    """
    devices = accelerators(ROOT / "configs" / "accelerators.yaml")

    def solved(text: str) -> tuple[pl.DataFrame, list[str]]:
        expanded = sweep(text)
        found = list(cells(*solvable(expanded), devices))
        with logged_by_store() as log:
            measured = measure_solutions(found, expanded.sweep.measure, 1, tmp_path)
        work = re.findall(r"\d+ measured before, \d+ to measure", "\n".join(log.output))
        return fit_table(found, *measured), work

    table, work = solved(FITTED)
    assert work == ["0 measured before, 10 to measure"] * 2
    assert table["confirmed"].to_list() == [True] * 10
    assert (table["measured"] <= table["memory"]).all()
    assert (table["measured_beyond"] > table["memory"]).all()
    both, work = solved(FITTED.replace("[16]", "[16, 24]"))
    assert work == ["10 measured before, 10 to measure"] * 2
    assert both["confirmed"].to_list() == [True] * 20
    same = ["purpose", "device", "value", "bytes", "measured", "measured_beyond"]
    assert both.filter(point="000001").select(same).equals(table.select(same))


def test_a_point_that_does_not_fit_is_measured_once(sweep, tmp_path):
    """With all quantities of its sweep, which that measures anyway."""
    expanded = sweep(
        FITTED.replace(", cache_bytes", "").replace("n_layer: 1", "batch: 1, n_layer: 1")
    )
    points = [(point.architecture, point.run) for point in expanded.points]
    measure_new(points, expanded.sweep.measure, 1, tmp_path)
    device = Accelerator(name="1 kB", bytes=1000, source="a test")
    solved = list(cells(*solvable(expanded), [device]))
    with logged_by_store() as log:
        measured = measure_solutions(solved, expanded.sweep.measure, 1, tmp_path)
    assert "1 measured before, 0 to measure" in "\n".join(log.output)
    table = fit_table(solved, *measured)
    assert table.select("value", "confirmed").rows() == [(0, True)]
    assert table["measured_beyond"].equals(table["bytes_beyond"])


NOTHING_TRACED = {
    # It was "no formula" alone.
    "no formula covers it (rope_tables: model of MLA); `modelbudget measure` measures it": (
        "base: deepseek-v2-lite\npoints: [{}, {n_vocab: 1000}]\n"
        "fixed: {n_layer: 2, length: 8, rope_tables: model}\nfit: [batch]\n"
        "measure: {device: meta, quantities: [peak_training_bytes]}\n"
    ),
    "encoder-decoder has no n_layer, or no formula where it is 1": (
        "base: t5-small\npoints: [{}]\nfixed: {length: 8}\nfit: [n_layer]\n"
        "measure: {device: meta, quantities: [peak_training_bytes]}\n"
    ),
    "not traced (more than 128 layers)": (
        "base: palm-8b\npoints: [{}]\nfixed: {n_layer: 129, length: 8}\nfit: [batch]\n"
        "measure: {device: meta, quantities: [parameter_bytes, cache_bytes]}\n"
    ),
}


@pytest.mark.parametrize("reason", NOTHING_TRACED)
def test_where_nothing_is_traced_the_reasons_are_given(sweep, catalogue, tmp_path, reason):
    """No formula of training, or more layers than are traced: rows and cells with reasons."""
    expanded = sweep(NOTHING_TRACED[reason])
    devices = accelerators(ROOT / "configs" / "accelerators.yaml")
    found = list(cells(*solvable(expanded), devices))
    table = fit_table(found, *measure_solutions(found, expanded.sweep.measure, 1, tmp_path))
    assert table.schema == SCHEMA
    assert set(table["confirmed"]) == {None}
    assert table["failure"].to_list() == [reason] * 5 * len(expanded.points)
    section = fits_section(result(tmp_path / "sweep.yaml", catalogue)._replace(fit=table))
    shown = {"fits": section} | dict.fromkeys(("layouts", "solved"))
    html = environment().get_template("memory.html.j2").render(section={"id": "s", **shown})
    assert reason in html


def test_a_trace_that_fails_loses_its_own_cells_alone(sweep, tmp_path, monkeypatch):
    """The smallest device's largest batch raises an error, and the next device's crashes."""
    expanded = sweep(FITTED.replace(", cache_bytes", ""))
    devices = [Accelerator(name=str(n), bytes=n * GB, source="a test") for n in (1, 2, 3)]
    solved = list(cells(*solvable(expanded), devices))
    raising, crashing, _ = (cell.largest[1].batch * cell.largest[1].length for cell in solved)
    cross_entropy = torch.nn.functional.cross_entropy

    def failing(logits, *arguments):
        if len(logits) == raising:
            raise ValueError("such a batch")
        if len(logits) == crashing:
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(logits, *arguments)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", failing)
    found = measure_solutions(solved, expanded.sweep.measure, 1, tmp_path)
    table = fit_table(solved, *found)
    assert table["measured"].is_null().to_list() == [True, True, False]
    assert table["measured_beyond"].is_not_null().all()
    assert table["confirmed"].to_list() == [True] * 3
    assert table["failure"].to_list() == [
        "not traced (ValueError: such a batch)",
        "not traced (killed by signal 9, probably out of memory)",
        None,
    ]


@pytest.mark.parametrize("base", ["gpt-2-124m", "llama-3-8b"])
def test_the_lower_end_of_the_range_is_what_the_class_of_transformers_needs(sweep, base):
    """The class itself, traced, fits at the value and does not at the next one."""
    expanded = sweep(
        f"base: {base}\nfixed: {{n_layer: 2, d_model: 64, n_head: 4, n_kv_head: 4, d_ff: 96, "
        "n_vocab: 512, "
        "length: 64, dtype: bfloat16, attention_kernel: flash}\npoints: [{}]\nfit: [batch]\n"
        "measure: {quantities: [peak_training_bytes]}\n"
    )
    device = Accelerator(name="a device", bytes=20_000_000, source="a test")
    (cell,) = cells(*solvable(expanded), [device])
    (value,) = fit_table([cell], {}, {})["value_of_class"]
    assert 1 < value < cell.solution.value
    (point,) = expanded.points
    needed = [
        max(
            trace_class(
                point.transformers,
                class_config(point.transformers, point.architecture),
                point.run.model_copy(update={"batch": batch}),
                {"peak_training_bytes"},
            )
            .values["peak_training_bytes"]
            .values()
        )
        for batch in (value, value + 1)
    ]
    assert needed[0] <= device.bytes < needed[1]


@pytest.mark.parametrize(
    "model",
    [
        "base: pythia-14m\nfixed: {dtype: bfloat16, attention_kernel: flash}\n",
        "base: gpt-2-124m\nfixed: {dtype: bfloat16, loss_chunks: 4}\n",
    ],
)
def test_a_class_whose_settings_are_not_known_or_contradict_the_run_has_no_range(sweep, model):
    expanded = sweep(
        f"{model}points: [{{}}]\nfit: [batch]\nmeasure: {{quantities: [peak_training_bytes]}}\n"
    )
    device = Accelerator(name="a device", bytes=24 * GB, source="a test")
    (cell,) = cells(*solvable(expanded), [device])
    assert cell.solution.value > 1
    assert cell.of_class is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "qwen-2.5-7b",
            "n_head = 28: tensor_parallel = 8 devices do not divide it; allowed: `devices=4`",
        ),
        (
            "gpt-2-124m",
            "n_head = 12: tensor_parallel = 8 devices do not divide it; allowed: `devices=1`",
        ),
    ],
)
def test_devices_that_cannot_share_a_model_name_how_many_can(name, why):
    """The 50,257 rows of GPT-2's vocabulary are divided by none of 2, 3, 4 and 6."""
    with pytest.raises(InputError, match=re.escape(why)):
        mb.model(name).fit("24GB", {}, devices=8, training=False)


@pytest.mark.parametrize(
    ("training", "held"),
    [
        (False, "parameters: 446 MB, evenly on 2 devices 223 MB of 24 GB"),
        # gradients of as many bytes, two states of AdamW, and a step counter for each tensor
        (True, "parameters, gradients, optimizer states: 1.78 GB, evenly on 2 devices 892 MB"),
    ],
)
def test_devices_that_nothing_divides_hold_at_least_their_share(training, held):
    """T5 base has 222,903,552 parameters in bfloat16, and no formula divides it."""
    with pytest.raises(InputError, match=held):
        mb.model("t5-base").fit("24GB", {"dtype": "bfloat16"}, devices=2, training=training)


def test_autocast_of_shards_names_what_they_have_instead():
    why = "zero = 3: not known yet with autocast: bfloat16; allowed: none (mixed precision of FSDP2"
    with pytest.raises(InputError, match=re.escape(why)):
        mb.model("llama-3.2-1b").fit("h100", {"autocast": "bfloat16"}, devices=8)


@pytest.mark.parametrize("name", ["mamba-130m", "mamba-2-130m"])
def test_a_family_without_checkpointing_is_fine_tuned_without(name):
    """It was refused, as PEFT's function checkpoints by default."""
    qlora = {"weights": "bnb-4bit", "adapter": "lora", "length": 8}
    found = mb.model(name).fit("24GB", qlora, training=True)
    assert found.fits
    assert (found.run.prepare_for_kbit_training, found.run.recompute) == (True, "none")
