"""Layouts of devices: those that model and run allow, the bytes of each, and which fit."""

import contextlib
import itertools
import math
import re

import polars as pl
import pytest
from helpers.tiers import ALL

import modelbudget as mb
from modelbudget.api.command.output import print_tables
from modelbudget.api.command.tables_of_fit import of_layouts
from modelbudget.architecture.arithmetic import divisors
from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.catalogue.memory_margins import memory_margins
from modelbudget.common.errors import InputError
from modelbudget.predict.fitting_layouts import numbers_of_devices, pareto, smallest
from modelbudget.predict.layout_search import LAYOUT, PEAK, check, layouts, of_sweep
from modelbudget.predict.prediction_or_reason import NO_FORMULA
from modelbudget.report.fit_tables import layouts_section
from modelbudget.sweeps.expand import expanded
from modelbudget.sweeps.read import read

SMALL = {
    "n_vocab": 512, "d_model": 64, "n_layer": 4, "n_head": 4, "n_kv_head": 2, "d_head": 16,
    "d_ff": 128, "batch": 4, "length": 24, "dtype": "bfloat16", "attention_kernel": "flash",
    "foreach": False,
}  # fmt: skip
SIZES = (1, 2, 4, 8)
DEVICES = [4, 8] if ALL else [4]


@pytest.fixture(scope="module")
def model():
    return mb.model("llama-3-8b", **SMALL)


def peak(model, **settings) -> int:
    return model.predict("peak_training_bytes", settings).total


def test_a_layout_without_a_closed_formula_has_the_peak_of_its_program():
    """Packed shards: in a table with layouts whose peaks are columns, and some without any."""
    model = mb.model("llama-3-8b", **SMALL, projections="packed")
    found = layouts(model.base, model.chosen | {"tensor_parallel": 1}, [2])
    shards = found.filter(pl.col("zero") >= 2, pl.col("data_parallel") == 2)
    assert len(shards) == 6
    for row in shards.iter_rows(named=True):
        assert row["bytes"] == peak(model, **{name: row[name] for name in LAYOUT})


def test_layouts_are_all_that_a_run_may_have_and_the_worst_stage_counts(model, monkeypatch):
    """One by one, through the records: each combination is allowed or refused."""
    n_run = (
        "modelbudget.predict.layout_search.FEW_RUNS",
        "modelbudget.predict.layout_search.MOST_RUNS",
    )
    found = layouts(model.base, model.chosen | {"context_parallel": 1}, DEVICES)
    for name in n_run:
        monkeypatch.setattr(name, 10_000)
    expected = {}
    for n, t, p, m in itertools.product(SIZES, SIZES, SIZES, (1, 2, 4)):
        for sequence, zero, schedule, again in itertools.product(
            (False, True),
            (0, 1, 2, 3),
            ("none", "gpipe", "1f1b", "interleaved_1f1b"),
            ("none", "selective", "full"),
        ):
            if n * t * p not in DEVICES or m > p == 1:  # microbatches are of stages
                continue
            n_virtual = 2 if schedule == "interleaved_1f1b" else 1
            values = (n, t, 1, 1, p, sequence, zero, schedule, again, n_virtual, m)
            ranks = ("first", "second", "middle", "last") if p > 2 else ("first", "last")
            layout = dict(zip(LAYOUT, values, strict=True))
            try:
                expected[values] = max(
                    peak(model, **layout, pipeline_rank=rank)
                    for rank in (ranks if p > 1 else ("first",))
                )
            except InputError as error:
                if NO_FORMULA in str(error):
                    expected[values] = None
    every = layouts(model.base, model.chosen | {"context_parallel": 1}, DEVICES)
    assert every.height == len(expected) > 40
    assert dict(zip(every.select(LAYOUT).iter_rows(), every["bytes"], strict=True)) == expected
    # A search that does not compute all layouts has the least of them.
    assert found["bytes"].null_count() > 0
    assert pareto(found)["bytes"].equals(pareto(every)["bytes"])
    assert (found["devices"] == found["data_parallel"] * found["tensor_parallel"]
            * found["pipeline_parallel"]).all()  # fmt: skip


def test_the_second_stage_holds_most_between_the_ends(model):
    """Traced; the last two of four stages have fewer microbatches at once."""
    run = {"pipeline_parallel": 4, "pipeline_schedule": "1f1b", "n_microbatch": 4}
    found = {
        rank: model.measure(run | {"pipeline_rank": rank}, ["parameters", "peak_training_bytes"])
        for rank in ("second", "middle")
    }
    assert all(one.agrees for one in found.values())
    assert peak(model, **run, pipeline_rank="second") > peak(model, **run, pipeline_rank="middle")


def test_layouts_that_are_not_computed_are_counted_apart(model, monkeypatch, capsys):
    """Only this sees a search that knows no layout, and says that none fits."""
    monkeypatch.setattr("modelbudget.predict.layout_search.MOST_RUNS", 0)
    stages = {"pipeline_schedule": "interleaved_1f1b", "pipeline_parallel": 2, "virtual_stages": 2}
    found = model.fit("h100-80gb", stages, devices=2).layouts
    n = found.of_all.height
    assert n == found.of_all["bytes"].null_count() > 0
    first, least = (table.title for table in of_layouts(found, "it"))
    assert first.endswith(f"fits 0 of {n} layouts, tight 0, not computed {n}")
    assert least.endswith("no layout was computed")
    print_tables(of_layouts(found, "it")[:1])
    assert capsys.readouterr().out == f"{first}\n"  # no names above nothing
    alone, *_ = of_layouts(found._replace(table=found.of_all[:1]), "it")
    assert alone.title.endswith("fits 0 of 1 layout, tight 0, not computed 1")


def test_interleaved_layouts_are_among_those_found(model):
    """Their bytes are those of a trace: rows share passes, which one run alone does not see."""
    chosen = {"tensor_parallel": 1, "zero": 0, "recompute": "none"}
    found = layouts(model.base, model.chosen | chosen, [2])
    interleaved = found.filter(pl.col("pipeline_schedule") == "interleaved_1f1b")
    assert interleaved.height == 3
    for row in interleaved.iter_rows(named=True):
        run = {name: row[name] for name in (*LAYOUT, "pipeline_rank")}
        assert row["bytes"] == peak(model, **run)
        assert model.measure(run, ["peak_training_bytes"]).agrees


def test_stages_with_an_adapter_are_among_those_found(model, monkeypatch):
    """Frozen parameters, and gathered ones, alone bound their bytes; the least are exact."""
    chosen = {"adapter": "lora", "adapter_dtype": "dtype", "length": 4}
    found = layouts(model.base, model.chosen | chosen, [2])
    for name in ("FEW_RUNS", "MOST_RUNS"):
        monkeypatch.setattr(f"modelbudget.predict.layout_search.{name}", 10_000)
    every = layouts(model.base, model.chosen | chosen, [2])
    assert every["bytes"].null_count() == 0 < found["bytes"].null_count()
    assert every["bytes"].min() == found["bytes"].min()
    best = every.filter(pl.col("pipeline_parallel") == 2).sort("bytes").row(0, named=True)
    run = {name: best[name] for name in (*LAYOUT, "pipeline_rank")}
    assert best["bytes"] == peak(model, **chosen, **run)
    assert model.measure(chosen | run, ["peak_training_bytes"]).agrees


def test_what_fits_and_the_front_of_devices_and_peak(model):
    found = layouts(model.base, model.chosen | {"recompute": "full"}, numbers_of_devices(8))
    assert found["devices"].unique().sort().to_list() == [1, 2, 4, 8]
    least = dict(found.group_by("devices").agg(pl.col("bytes").min()).iter_rows())
    front = pareto(found)
    assert front["bytes"].is_sorted(descending=True)
    assert dict(front.select("devices", "bytes").iter_rows()).items() <= least.items()
    assert smallest(found, least[2]) == min(n for n in least if least[n] <= least[2])
    assert smallest(found, min(least.values()) - 1) is None


def test_a_given_field_is_kept_and_none_is_refused_with_a_reason(model):
    found = layouts(model.base, model.chosen | {"tensor_parallel": 2, "recompute": "full"}, [8])
    assert set(found["tensor_parallel"]) == {2}
    assert set(found["recompute"]) == {"full"}
    with pytest.raises(
        InputError, match="n_kv_head = 2: tensor_parallel = 4: peak_training_bytes is not known"
    ):
        model.fit("h100-80gb", {"zero": 3, "tensor_parallel": 4, "data_parallel": 4}, devices=16)


@pytest.mark.parametrize(
    ("devices", "chosen", "shared"),
    [
        (2, {"tensor_parallel": 2}, {"tensor_parallel": 2}),
        (8, {}, {"zero": 3, "data_parallel": 8}),
        (8, {"tensor_parallel": 2}, {"zero": 3, "data_parallel": 4, "tensor_parallel": 2}),
        (2, {"context_parallel": 2}, {"zero": 3, "context_parallel": 2}),
    ],
)
def test_devices_are_those_of_the_whole_mesh(model, devices, chosen, shared):
    """Two that compute a replica together, of eight, were taken for two of sixteen."""
    settings = {"attention_kernel": "flash", "dtype": "bfloat16", "batch": 2}
    fit = model.fit("h100-80gb", settings | chosen, devices=devices)
    assert fit.sharing == shared
    assert fit.needed == model.predict(PEAK, settings | shared).total


@pytest.mark.parametrize(
    ("chosen", "shared"),
    [
        ({"data_parallel": 2}, {"data_parallel": 2, "tensor_parallel": 2}),
        ({"data_parallel": 4}, {"data_parallel": 4}),
        ({"tensor_parallel": 2}, {"tensor_parallel": 2}),
    ],
)
def test_devices_of_a_mesh_share_a_model_in_inference(model, chosen, shared):
    """Of four, two replicas had shares of four each: eight devices."""
    fit = model.fit("h100-80gb", {"dtype": "bfloat16"} | chosen, devices=4, training=False)
    assert {name: size for name, size in fit.sharing.items() if size > 1} == shared
    assert fit.needed == model.predict("peak_inference_bytes", fit.run).total


def test_devices_that_a_mesh_does_not_divide_are_refused(model):
    with pytest.raises(InputError, match=r"`devices=3`: allowed: a multiple of 2 \(tensor_par"):
        model.fit("h100-80gb", {"tensor_parallel": 2}, devices=3)
    with pytest.raises(InputError, match=r"`devices=3`: allowed: a multiple of 2 \(data_para"):
        model.fit("h100-80gb", {"data_parallel": 2}, devices=3)
    with pytest.raises(InputError, match=r"`devices=3`: allowed: a multiple of 2 \(data_para"):
        model.fit("h100-80gb", {"data_parallel": 2}, devices=3, training=False)


def test_the_offered_layouts_fit_up_to_their_largest_batch(model):
    """On a device that has room for the layout as given, and hardly more."""
    fit = model.fit("rtx-4090", {"recompute": "full"}, devices=4)
    layouts_of = fit.layouts._replace(
        accelerator=fit.accelerator.model_copy(update={"bytes": 3_000_000})
    )
    for row in layouts_of.offered:
        layout = {name: row[name] for name in LAYOUT}
        rank = {"pipeline_rank": row["pipeline_rank"]}
        batch, step = row["largest_batch"], row["n_microbatch"]
        assert peak(model, **layout | rank | {"batch": batch}) <= 3_000_000
        ranks = ("first", "last") if row["pipeline_parallel"] > 1 else ("first",)
        assert any(
            peak(model, **layout | {"pipeline_rank": one, "batch": batch + step}) > 3_000_000
            for one in {*ranks, row["pipeline_rank"]}
        )
    assert min(fit.layouts.fewest.values()) == 1
    of_json = [row for row in layouts_of.rows() if row["largest_batch"] is not None]
    batches = [(row["bytes"], row["largest_length"]) for row in of_json]
    assert batches == [(row["bytes"], row["largest_length"]) for row in layouts_of.offered]


def test_layouts_have_the_grades_of_the_command(model):
    """The reserve leaves little more than the least that any layout needs."""
    memory = 24 * 10**9
    alone = model.fit("24GB", devices=2)
    least = alone.layouts.table["bytes"].min()
    fit = model.fit("24GB", devices=2, reserve=memory - 2 * least)
    table = fit.layouts.table.drop_nulls("bytes")
    grades = [fit.margins.grade(n, memory) for n in table["bytes"]]
    assert table["grade"].to_list() == grades
    assert {"fits", "tight"} <= set(grades)
    assert {row["grade"] for row in fit.layouts.offered} == {"fits"}
    by_grade = fit.layouts.fewest
    assert by_grade["tight"] == min(fit.layouts.fewest.values()) < by_grade["fits"]
    assert set(alone.layouts.table["grade"].drop_nulls()) == {"fits"}


def test_layouts_under_the_name_of_a_class_were_compared_with_it():
    """FSDP2 that keeps parameters gathered was not, and classes have no selective checkpointing."""
    fit = mb.model("llama-3-8b", n_layer=2).fit(
        "h100-80gb", {"implementation": "transformers", "length": 64}, devices=2
    )
    offered = fit.layouts.table.select("zero", "recompute").unique()
    assert set(offered.rows()) == {(z, r) for z in (0, 3) for r in ("none", "full")}


SWEEP = """
title: t
question: q
base: llama-3-8b
fixed: {n_vocab: 512, d_model: 64, n_layer: 4, n_head: 4, n_kv_head: 2, d_head: 16, d_ff: 128}
layouts: [1, 4]
points: [{}]
"""


def test_layouts_of_a_sweep_and_their_table(tmp_path, catalogue):
    path = tmp_path / "small.yaml"
    path.write_text(SWEEP)
    table = of_sweep(read(path, catalogue))
    assert set(table["devices"]) == {1, 4}
    room = int(table.filter(pl.col("devices") == 1)["bytes"].min()) - 1
    device = Accelerator(name="Tiny", bytes=room, source="made up")
    section = layouts_section(table, [device])
    assert "Tiny" in section["table"]
    assert ">4<" in section["table"]  # one device is not enough
    # With room for the reserve and the worst reading of the layout that needs most, all fit.
    margins = memory_margins()
    enough = int(margins.worst_ratio.value * table["bytes"].max()) + margins.reserve.bytes + 3
    large = device.model_copy(update={"bytes": enough})
    counted = f"{table['bytes'].count()} of {table['bytes'].count()}"
    assert ">fits<" in (graded := layouts_section(table, [large])["table"])
    assert counted in graded
    assert ">tight<" not in graded
    assert ">tight<" in section["table"]
    path.write_text(SWEEP.replace("[1, 4]", "[0]"))
    with pytest.raises(InputError, match=r"layouts\[0\] = 0"):
        expanded(read(path, catalogue))


def test_a_thousand_devices_share_a_model_in_every_way_that_it_allows():
    """Every product of four sizes that makes 1,000, through the records."""
    model = mb.model("mixtral-8x7b", **SMALL | {"n_layer": 20, "n_head": 20, "n_kv_head": 10,
                                                "n_expert": 50})  # fmt: skip
    chosen = model.chosen | {"context_parallel": 1, "zero": 0, "n_microbatch": 1,
                             "virtual_stages": 1, "recompute": "none"}  # fmt: skip
    meshes = ("data_parallel", "tensor_parallel", "expert_parallel", "pipeline_parallel")
    expected = set()
    for sizes in itertools.product(divisors(1000), repeat=3):
        data, left = divmod(1000, math.prod(sizes))
        mesh = dict(zip(meshes, (data, *sizes), strict=True))
        schedule = "1f1b" if mesh["pipeline_parallel"] > 1 else "none"
        is_sequence = mesh["tensor_parallel"] > 1
        run = mesh | {"pipeline_schedule": schedule, "sequence_parallel": is_sequence}
        with contextlib.suppress(InputError):
            if left:
                continue
            why = model.why_not("peak_training_bytes", chosen | run)
            if why is None or why.startswith(NO_FORMULA):
                expected.add(tuple(run.values()))
    found = layouts(model.base, chosen, numbers_of_devices(1000))
    found = found.filter(
        pl.col("sequence_parallel") == (pl.col("tensor_parallel") > 1),
        pl.col("pipeline_schedule").is_in(["none", "1f1b"]),
        devices=1000,
    )
    fields = (*meshes, "pipeline_schedule", "sequence_parallel")
    assert {*found.select(fields).iter_rows()} == expected
    assert len(expected) > 10
    # A mesh that is set whole may have another number of devices.
    with pytest.raises(ValueError, match=r"\[1000\]: model and run allow no layout"):
        layouts(model.base, chosen | dict.fromkeys(meshes, 1), [1000])


LAYOUTS = {
    "a million devices": ("layouts: [1000000]\nfixed: {recompute: full, zero: 0}", None),
    "a prime": ("layouts: [999983]\nfixed: {batch: 999983, recompute: full}", None),
    "past 64 bits": (
        "layouts: [1]\nfixed: {batch: 9223372036854775807}",
        "layouts = [1]: base = 'gpt-2-124m': peak_training_bytes = ",
    ),
    "many divisors": ("layouts: [720720]", "combinations; at most 100,000 are allowed; choose"),
    "none": ("layouts: [7]\nfixed: {data_parallel: 2}", "model and run allow no layout of these"),
}


@pytest.mark.parametrize(("keys", "why"), LAYOUTS.values(), ids=LAYOUTS)
def test_large_numbers_of_devices_are_shared_or_refused(tmp_path, catalogue, keys, why):
    path = tmp_path / "large.yaml"
    path.write_text(f"title: t\nquestion: q\nbase: gpt-2-124m\ngrid: {{n_layer: [1]}}\n{keys}\n")
    checked = read(path, catalogue)
    if why is None:
        check(checked)
        assert of_sweep(checked).height >= 3
    else:
        with pytest.raises(InputError, match=f"large.yaml: .*{re.escape(why)}"):
            check(checked)


def test_divisors_of_a_large_prime_are_found_at_once():
    assert divisors(12, 18) == [1, 2, 3, 4, 6, 9, 12, 18]
    assert divisors(1_000_000_007) == [1, 1_000_000_007]
    assert divisors(10**9)[-2:] == [5 * 10**8, 10**9]
    assert divisors(2**63 - 25) == [1, 2**63 - 25]


def test_a_layout_that_is_followed_has_the_bytes_that_were_offered(model):
    """With sequence parallelism torch steps all matrices at once by default, without it each."""
    model = mb.model("llama-3-8b", **{name: n for name, n in SMALL.items() if name != "foreach"})
    shared = {"tensor_parallel": 2, "zero": 0, "pipeline_schedule": "none", "recompute": "full"}
    offered = model.fit("h100-80gb", shared, devices=4, training=True).layouts.offered
    foreach = set()
    for row in offered:
        found = model.fit("h100-80gb", {name: row[name] for name in LAYOUT}, devices=4)
        assert found.needed == row["bytes"]
        foreach.add(found.run.foreach)
    assert foreach == {False, True}
