"""`import modelbudget as mb`: lazy, typed, and the same numbers as the pipeline's."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import sympy
import torch
from helpers.project import ROOT
from helpers.tiers import some
from torch import nn

import modelbudget as mb
from modelbudget.api.command.budget_table import as_dict
from modelbudget.api.gguf import gguf_file
from modelbudget.api.model import Model
from modelbudget.api.predictions import QUANTITIES
from modelbudget.catalogue.named_models import find
from modelbudget.common import code_digests
from modelbudget.predict.predict import predict
from modelbudget.sweeps.device_defaults import DECIDED
from modelbudget.sweeps.expand import expand
from modelbudget.sweeps.points_table import points_table


def test_importing_the_package_loads_nothing_and_concerns_no_rule():
    code = "import sys, modelbudget; print(*(n for n in sys.modules if 'modelbudget' in n))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["modelbudget"]
    reached = code_digests.reached([ROOT / "modelbudget" / "__init__.py"])
    assert reached == {ROOT / "modelbudget" / "__init__.py"}
    for script in (ROOT / "scripts").glob("*.py"):
        of_rule = {path.relative_to(ROOT).parts[1] for path in code_digests.reached([script])}
        assert not of_rule & {"api", "command"}, script


def test_a_breakdown_is_a_sequence_of_its_components():
    parameters = mb.model("gpt-2-124m").parameters()
    assert [*parameters] == [*parameters.components]
    assert sum(component.value for component in parameters) == parameters.total == 124_439_808


@pytest.mark.parametrize(
    "quantities",
    [
        ("parameters", "parameter_bytes", "cache_bytes", "flops_forward"),
        pytest.param(QUANTITIES, marks=pytest.mark.slow),
    ],
)
def test_the_whole_catalogue_is_predicted_as_in_the_pipeline(catalogue, tmp_path, quantities):
    """Every fourth model with a sweep's defaults by component, as the command prints it."""
    path = tmp_path / "all.yaml"
    path.write_text("title: All\nquestion: Why?\nmodels: all\n")
    points = points_table(expand(path, catalogue).points)
    assert points.height > 200
    points = points[some(range(points.height), 4)]
    table = predict(points, quantities).drop_nulls("component")
    by_model = table.partition_by("architecture", "run", as_dict=True)
    for row in points.iter_rows(named=True):
        of_pipeline: dict[str, dict[str, int]] = {}
        for one in by_model[row["architecture"], row["run"]].iter_rows(named=True):
            if one["predicted"]:  # components of 0 bytes are not shown
                of_pipeline.setdefault(one["quantity"], {})[one["component"]] = one["predicted"]
        settings = {name: row[name] for name in DECIDED}
        predicted = Model(catalogue[row["base"]]).predictions(quantities, settings)
        shown = as_dict(predicted)["quantities"]
        assert {name: one["components"] for name, one in shown.items()} == of_pipeline, row["base"]


def test_one_base_is_found_as_in_the_whole_catalogue(catalogue):
    for name, base in catalogue.bases.items():
        if base.path is None or base.name.startswith(("llama", "palm")):
            assert find(ROOT / "configs" / "models", name) == base


def test_a_model_answers():
    model = mb.model("llama-3-8b")
    assert model.parameters().total == 8_030_261_248
    run = mb.RunConfig(batch=2, length=4096, dtype="bfloat16")
    assert model.memory(run)["cache_bytes"].total == 32 * 2 * 8 * 128 * 2 * 4096 * 2
    assert model.flops(run).totals()["flops_forward"] > 2 * 8e9 * 2 * 4096 * 0.9
    heads, width, layers = sympy.symbols("n_kv_head d_head n_layer", integer=True)
    d_model = sympy.Symbol("d_model", integer=True)
    assert model.formula("layer.attention.key") == layers * d_model * heads * width
    assert model.fit("rtx-4090", {"dtype": "bfloat16"}, training=False).fits
    assert mb.model("llama-3-8b", n_layer=1).architecture.n_layer == 1
    frame = model.parameters().to_polars()
    assert frame["value"].sum() == 8_030_261_248
    assert model.parameters().to_pandas()["value"].sum() == 8_030_261_248
    html = model.parameters()._repr_html_()
    assert "8,030,261,248 parameters" in html
    assert html.count("<tr>") == 1 + len(frame)


def test_answers_are_read_like_mappings_and_a_run_shows_what_is_set():
    """A loop asked for the quantity 0; a run looked as if it were in float32."""
    model = mb.model("gpt-2-124m")
    flops = model.flops()
    assert list(flops) == ["flops_forward", "flops_decode", "flops_backward"]
    assert {name: flops[name].total for name in flops} == flops.totals()
    counts = model.conventions()
    assert {name: counts[name] for name in counts} == counts.values
    assert repr(counts).startswith("<Counts of GPT-2 124M, length 1,024: total, ")
    assert repr(gguf_file(model, "q8_0")).startswith("<GPT-2 124M as Q8_0: ")
    assert repr(mb.RunConfig(batch=8, fused=False)) == "RunConfig(batch=8, fused=False)"
    assert model.parameters().chart().to_dict()["mark"]["type"] == "bar"


def test_settings_that_nobody_set_are_those_of_a_gpu():
    """The kernel by dtype and shape, as torch chooses it; what is set or known wins."""
    model = mb.model("llama-3-8b")
    # Weights, cache and the prefill's tensors: no scores of 8,192 × 8,192 are in memory.
    assert 18.0e9 < model.predict("peak_inference_bytes", {"length": 8192}).total < 18.1e9

    def settings(name: str, **chosen):
        run = mb.model(name).run(chosen)
        return run.dtype, run.attention_kernel, run.foreach

    assert settings("llama-3-8b") == ("bfloat16", "flash", True)
    assert settings("gpt-2-124m", dtype="float32") == ("float32", "efficient", True)
    # torch 2.13 has no grouped heads in its memory-efficient kernel (pytorch/pytorch#154363).
    assert settings("llama-3-8b", dtype="float32") == ("float32", "math", True)
    assert settings("llama-3-8b", autocast="bfloat16") == ("float32", "flash", True)
    assert settings("llama-3-8b", attention_kernel="math") == ("bfloat16", "math", True)
    assert settings("llama-3-8b", backend="cpu") == ("float32", "flash", False)
    assert settings("mistral-7b-v0.1", length=4097, backend="cpu") == ("float32", "math", False)
    assert settings("gpt-2-124m", d_head=320) == ("bfloat16", "efficient", True)  # flash: 256
    assert settings("llama-3-8b", d_head=320) == ("bfloat16", "math", True)
    assert settings("gpt-2-124m", d_head=66) == ("bfloat16", "math", True)
    # Masks, for which our modules repeat keys and values, as classes of transformers do.
    assert settings("bloom-560m") == ("bfloat16", "efficient", True)  # ALiBi
    assert settings("gpt-oss-20b") == ("bfloat16", "efficient", True)  # sinks
    assert settings("mistral-7b-v0.1", length=4096) == ("bfloat16", "flash", True)
    assert settings("mistral-7b-v0.1", length=4097) == ("bfloat16", "flash", True)  # as dispatched
    assert settings("mistral-7b-v0.1", length=4097, dtype="float32")[1] == "efficient"
    assert settings("gemma-3-27b", length=4097)[1] == "flash"  # and where it hides scores efficient
    assert settings("gemma-3-27b", length=4097, dtype="float32")[1] == "math"
    assert settings("deepseek-v3") == ("bfloat16", "efficient", True)  # values narrower than keys
    assert settings("gemma-2-2b", implementation="transformers")[1] == "written_out"


def test_every_answer_names_kernel_precision_optimizer_and_implementation():
    """In Python and in a notebook, as the command's first line does; a count depends on none."""
    model, run = mb.model("gpt-2-124m"), {"length": 8, "optimizer": "sgd", "dtype": "float32"}
    answers = [
        model.memory(run), model.predict("cache_bytes", run), model.fit("h100", run),
        model.measure(run, ["flops_forward"]),
    ]  # fmt: skip
    settings = (
        "length 8, dtype float32, optimizer sgd, foreach true, attention_kernel efficient, "
        "implementation modelbudget"
    )
    for answer in answers:
        for text in (str(answer), repr(answer), answer._repr_html_()):
            assert settings in text
    assert "implementation" not in str(model.parameters())
    assert "attention_kernel" not in mb.model("mamba-130m").fit("24GB").settings
    why = "attention_kernel: math, not flash: d_head = 66"
    found = mb.model("gpt-2-124m", d_head=66).memory({"length": 8})
    assert why in repr(found)
    assert why in found._repr_html_()
    masked = mb.model("mistral-7b-v0.1").predictions(
        ["flops_forward"], {"length": 4097, "backend": "cpu"}
    )
    assert any(
        "a CPU's kernel with a mask is not known (no formula)" in line for line in masked.notes
    )


@pytest.mark.parametrize(
    ("name", "chosen", "notes"),
    [
        ("llama-3-8b", {"attention_kernel": "math", "dtype": "float32"}, []),
        ("gpt-2-124m", {}, []),
        (
            "bloom-560m",
            {"length": 2048},
            [
                "efficient, with a mask in memory, 16 × 2,048 × 2,048 numbers a sequence: position "
                "= alibi; FlashAttention's own packages and engines compute it in the kernel: no "
                "formula"
            ],
        ),
        (
            "gpt-oss-20b",
            {"length": 2048},
            [
                "efficient, with a mask in memory, 64 × 2,048 × 2,048 numbers a sequence: sinks = "
                "true; FlashAttention's own packages and engines compute it in the kernel: no "
                "formula"
            ],
        ),
        (
            "t5-small",
            {},
            [
                "efficient, with a mask in memory, 8 × 1,024 × 1,024 numbers a sequence: position "
                "= buckets"
            ],
        ),
        (
            "llama-3-8b",
            {"dtype": "float32"},
            [
                "math, not flash: dtype = float32: a GPU's flash attention takes bfloat16 or "
                "float16; not efficient: n_kv_head = 8 of n_head = 32: torch 2.13 runs grouped "
                "heads by flash or math"
            ],
        ),
        (
            "gemma-3-1b",
            {"length": 8192},
            [
                "flash, and memory-efficient attention in layers where window = 512, of length = "
                "8,192, masks scores"
            ],
        ),
    ],
)
def test_an_answer_says_why_scores_are_in_memory(name, chosen, notes):
    found = mb.model(name).predictions(["peak_inference_bytes", "activation_bytes"], chosen).notes
    assert [one for one in found if "attention_kernel" in one] == [
        f"attention_kernel: {note}" for note in notes
    ]
    assert not any(
        "attention_kernel" in one for one in mb.model(name).predictions(["parameters"]).notes
    )


@pytest.mark.parametrize(
    ("name", "is_recurrent"),
    [
        ("mamba-2-130m", True),
        ("qwen3-next-80b-a3b", True),
        ("rwkv-4-169m", True),
        ("rwkv-7-0.4b", True),
        ("gpt-2-124m", False),
    ],
)
def test_an_answer_says_that_a_recurrence_is_without_kernels(name, is_recurrent):
    """Mamba-2 1.3B with 8,192 tokens is 490 GB without the kernels that people train it with."""
    model = mb.model(name)
    for quantity in ("activation_bytes", "peak_inference_bytes"):
        notes = model.predictions([quantity], {"length": 64}).notes
        assert any("kernels that do without (mamba-ssm" in note for note in notes) == is_recurrent
    assert not any("recurrence" in note for note in model.predictions(["parameters"]).notes)


def test_numbers_of_numpy_are_whole_numbers_and_a_model_is_a_key():
    """Only here: each row of a frame of pandas was refused (`batch = np.int64(2)`)."""
    two = np.int64(2)
    shallow = mb.model("gpt-2-124m", n_layer=two)
    assert {shallow: 1} == {mb.model("gpt-2-124m", n_layer=2): 1}
    assert shallow.run({"batch": two}) == shallow.run(mb.RunConfig(batch=two))
    # Each was refused: a switch of NumPy, torch's own dtype, its name as files have it.
    assert mb.model("gpt-2-124m", tied=np.False_).parameters().total == 124_439_808 + 768 * 50257
    for half in (torch.bfloat16, "torch.bfloat16", "BF16"):
        assert mb.RunConfig(dtype=half).dtype == "bfloat16"
    with pytest.raises(mb.InputError, match="batch = true"):
        mb.RunConfig(batch=True)


def test_every_result_is_a_frame_and_shows_itself(tmp_path):
    model = mb.model("gpt-2-124m", n_layer=2)
    (tmp_path / "<b>").mkdir()
    (tmp_path / "<b>" / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    escaped = mb.model(tmp_path / "<b>")
    assert "<b>" not in escaped._repr_html_()
    assert "124,439,808" in mb.model("gpt-2-124m")._repr_html_()
    for found, n_rows in (
        (model.parameters(), 11),
        (model.flops(), 3 * 8),  # four projections, core, two of the MLP, head
        (model.fit("h100"), 2),
        (model.serve("h100"), 6),
        (mb.measure(nn.Linear(3, 4), torch.zeros(2, 3)), 4),
    ):
        frame = found.to_polars()
        assert found.to_pandas().shape == frame.shape
        assert len(frame) == n_rows
        assert found._repr_html_().startswith("<table>")
        assert repr(found)[0] == "<"


@pytest.mark.parametrize(
    ("ask", "about"),
    [
        (lambda: mb.model("llama-3-8"), "did you mean"),
        (lambda: mb.model("llama-3-8b", n_layers=3), "did you mean n_layer"),
        (lambda: mb.model("llama-3-8b").formula("layer.attention.kee"), "layer.attention.key"),
        (lambda: mb.model("bert-base").memory()["cache_bytes"], "keeps no cache"),
        (lambda: mb.model("gpt-2-124m").fit("h100", {"n_ctx": 0}), "n_ctx = 0"),
        (lambda: mb.model("gpt-2-124m").predict("params"), "unknown"),
        (lambda: mb.model("gpt-2-124m").run({"implementation": []}), r"implementation = \[\]"),
        (lambda: mb.RunConfig(lr=1), "lr = 1: no setting: nothing in bytes or FLOPs of a step"),
        (lambda: mb.results("/nonexistent"), "no such folder"),
        (lambda: mb.sweep("/"), "/: a folder; allowed: the file of one sweep"),
    ],
)
def test_a_mistake_says_what_is_allowed(ask, about):
    with pytest.raises(mb.InputError, match=about):
        ask()


def test_any_module_is_measured_by_calling_the_folder():
    module = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))
    found = mb.measure(module, torch.zeros(3, 8))
    assert {part.name: part.value for part in found.parameters.components} == {
        "0": 128,
        "2": 64,
    } or (found.parameters.total == 192)
    assert found.parameter_bytes.total == 4 * 192
    assert found.flops_forward.total == 2 * 3 * 192
    # the input of each product, of which the second is also what ReLU saves
    assert found.activation_bytes.total == 4 * 3 * (8 + 16)
    assert mb.measure(module).flops_forward is None


def test_a_model_is_held_against_its_module():
    found = mb.model("gpt-2-124m").measure()
    assert found.agrees
    assert found.of_class["parameters"].item() == found.predicted == 124_439_808
    assert isinstance(found.to_polars(), pl.DataFrame)
    assert found.to_pandas().shape == found.to_polars().shape
    assert "comparisons agree" in found._repr_html_()


def test_a_model_of_which_only_flops_are_measured_agrees():
    found = mb.model("gpt-2-124m", n_layer=1, n_vocab=64).measure(quantities=["flops_forward"])
    assert found.agrees
    assert not found.class_differs


def test_results_are_read_from_the_folder_given_and_no_other(tmp_path, monkeypatch):
    for folder in ("old-results", "results", "empty"):
        (tmp_path / folder).mkdir()
        if folder != "empty":
            (tmp_path / folder / folder[:3]).mkdir()
            frame = pl.DataFrame({"point": [folder], "agrees": [True]})
            frame.write_parquet(tmp_path / folder / folder[:3] / "comparison.parquet")
    monkeypatch.chdir(tmp_path)
    found = mb.results("old-results/")
    assert found.sweeps() == ["old"]
    assert found.to_polars()["point"].to_list() == ["old-results"]
    with pytest.raises(mb.InputError, match="empty: no results in it"):
        mb.results("empty")
    parts = tmp_path / "empty" / "grid" / "predictions"
    parts.mkdir(parents=True)
    for number in (1, 0):  # the files of a run, one for some chunks of rows
        pl.DataFrame({"d_model": [number]}).write_parquet(parts / f"part-0000{number}.parquet")
    of_grid = mb.results("empty")
    assert (of_grid.sweeps(), of_grid.predicted()) == ([], ["grid"])
    assert of_grid.predictions("grid").collect()["d_model"].to_list() == [0, 1]
    with pytest.raises(mb.InputError, match=r"empty: no sweep 'old' \(allowed: grid\)"):
        of_grid.predictions("old")


def test_results_are_tidy_frames(reported):
    found = mb.results(Path(reported.folder) / "results")
    assert {"other", "small", "zoo"} <= set(found.sweeps())
    frame = found.comparison("small", "other")
    assert set(frame["sweep"]) == {"small", "other"}
    assert {"point", "component", "predicted", "measured"} <= set(frame.columns)
    assert found.to_pandas().shape[0] == found.to_polars().height
    with pytest.raises(mb.InputError, match="no sweep 'smal'"):
        found.comparison("smal")
