"""Every mistake gets one clear message: file, key, value, what is allowed. Nothing is started."""

import re
import resource
import subprocess
import sys

import pytest
from helpers.catalogue import catalogue_of, check_other_models
from helpers.project import ROOT

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.common.errors import InputError
from modelbudget.workflow import preflight
from modelbudget.workflow.chosen_sweeps import PARTS_OF_SWEEP, REPORT, chosen_sweeps, reserved_names

GOOD = "base: gpt-2-124m\ngrid:\n  n_layer: [1, 2]\n"


@pytest.fixture
def mistakes(tmp_path, monkeypatch):
    """Write sweep files by name, read all of them, and return the mistakes."""
    (tmp_path / "configs" / "sweeps").mkdir(parents=True)
    for name in ("models", "accelerators.yaml"):
        (tmp_path / "configs" / name).symlink_to(ROOT / "configs" / name)
    monkeypatch.chdir(tmp_path)
    of_sweeps = "modelbudget.workflow.chosen_sweeps"
    monkeypatch.setattr(f"{of_sweeps}.Catalogue", catalogue_of)
    monkeypatch.setattr(f"{of_sweeps}.check_models", check_other_models)

    def mistakes_of(**files: str) -> list[str]:
        for name, text in files.items():
            head = "" if text.startswith("!") else "title: t\nquestion: q\n"
            path = tmp_path / "configs" / "sweeps" / name.replace("__", ".")
            path.write_text(head + text.removeprefix("!"))
        with pytest.raises(InputError) as refusal:
            chosen_sweeps(None)
        return refusal.value.mistakes

    return mistakes_of


ONE_MISTAKE = {
    "broken YAML, with line": ("grid: [1, 2\nbase: gpt-2-124m\n", ["line 4"]),
    "duplicate key, with line": (GOOD + "base: palm\n", ["line 6", "'base'", "line 3"]),
    "duplicate key inside": ("base: palm\ngrid:\n  n_head: [1]\n  n_head: [2]\n", ["'n_head'"]),
    "not a mapping": ("!- 1\n- 2\n", ["list"]),
    "unknown key": (GOOD + "gird: {}\n", ["gird: unknown key", "did you mean grid?"]),
    "unknown key in measure": (GOOD + "measure: {devise: cpu}", ["measure.devise", "device?"]),
    # The key of a query had no suggestion.
    "key of another tool": (
        GOOD + "where: [n_layer > 1]\n",
        ["where: unknown key; did you mean constraints?"],
    ),
    "unknown key of a chart": (
        "base: palm-8b\ngrid: {n_layer: [1, 2]}\ncharts: [{x: n_layer, color: n_layer}]",
        ["charts[0].color: unknown key; did you mean colour?"],
    ),
    # A remainder kept the points that it was meant to drop.
    "number for a condition": (
        "base: palm-8b\ngrid: {n_layer: [1, 2]}\nconstraints: [n_layer % 2]",
        ["constraints[0]: 'n_layer % 2' is no condition; allowed: a comparison, such as"],
    ),
    # Nothing varies without the grid, which is no second mistake.
    "grid of a chart by another name": (
        "base: palm-8b\ngird: {n_layer: [1, 2]}\ncharts: [{x: n_layer}]",
        ["gird: unknown key; did you mean grid?"],
    ),
    "label of a point by another name": (
        "points: [{base: palm-8b, lable: small}]",
        ["points[0].lable: unknown field; did you mean label?"],
    ),
    "unknown field": ("base: palm\ngrid: {d_modell: [2]}", ["grid.d_modell", "d_model?"]),
    "number as text": (
        "base: palm\ngrid: {n_layer: [1e5]}",
        ["grid.n_layer[0] = '1e5'", "whole number", "write 100000"],
    ),
    "boolean for a count": ("base: palm\ngrid: {n_layer: [yes]}", ["n_layer[0] = true", "whole"]),
    "count for a boolean": ("base: palm\ngrid: {tied: [1]}", ["tied[0] = 1", "true or false"]),
    "unknown word": ("base: palm\nfixed: {norm: batchnorm}\ngrid: {tied: [true]}", ["'rmsnorm'"]),
    "rank of no adapter": (
        "base: palm\nfixed: {adapter_rank: 16}\ngrid: {batch: [1]}",
        ["fixed.adapter_rank = 16: of no adapter; allowed with adapter: lora"],
    ),
    # Before anything is measured: it was seen only when charts were drawn.
    "answered by no chart": (
        GOOD + "answered_by: [totals]",
        ["answered_by[0] = 'totals': no chart; did you mean total?", "are in docs/results.md"],
    ),
    "answered by a chart of another quantity": (
        GOOD + "answered_by: [cache-bytes-total]",
        ["answered_by[0] = 'cache-bytes-total': no chart"],
    ),
    "no layout of so many devices": (
        "base: gpt-2-124m\nfixed: {data_parallel: 2, zero: 2}\npoints: [{}]\nlayouts: [3]",
        ["layouts = [3]", "base = 'gpt-2-124m'", "allow no layout", "a product of data_parallel"],
    ),
    "fit: measured on an unknown accelerator": (
        GOOD + "fit: [batch]\nfit_measured_on: [H10]\nmeasure: {quantities: [peak_training_bytes]}",
        ["fit_measured_on[0] = 'H10': unknown accelerator; did you mean H100?", "RTX 4090, A100, "],
    ),
    "solve: unknown quantity": (
        GOOD + "solve: {within: {parametres: [1, 2]}, best: {n_layer: most}}",
        ["solve.within.parametres: unknown name; did you mean parameters?"],
    ),
    "solve: quantity that is not measured": (
        GOOD + "solve: {within: {cache_bytes: [1, 2]}, best: {n_layer: most}}",
        ["solve.within.cache_bytes: not measured; add it to measure.quantities"],
    ),
    "solve: unknown objective": (
        GOOD + "solve: {within: {n_layer: [1, 2]}, best: {n_layers: most}}",
        ["solve.best.n_layers: unknown name; did you mean n_layer?"],
    ),
    "solve: bounds the wrong way round": (
        GOOD + "solve: {within: {parameters: [2, 1]}, best: {n_layer: most}}",
        ["solve.within.parameters = [2, 1]: the least must not exceed the most"],
    ),
    "solve: one bound of two": (
        GOOD + "solve: {within: {parameters: [2]}, best: {n_layer: most}}",
        ["solve.within.parameters = [2]", "at least 2 items"],
    ),
    "solve: neither most nor least": (
        GOOD + "solve: {within: {parameters: [1, 2]}, best: {n_layer: max}}",
        ["solve.best.n_layer = 'max'", "'most' or 'least'"],
    ),
    "solve: no bound": (
        GOOD + "solve: {within: {}, best: {n_layer: most}}",
        ["solve.within = {}", "at least 1 item"],
    ),
    "solve: unknown device": (
        GOOD + "solve: {within: {parameter_bytes: h10}, best: {n_layer: most}}",
        ["solve.within.parameter_bytes = 'h10': unknown accelerator", "did you mean h100-80gb?"],
    ),
    "solve: a device for a count": (
        GOOD + "solve: {within: {parameters: h100}, best: {n_layer: most}}",
        ["solve.within.parameters = 'h100': an accelerator bounds bytes"],
    ),
    "solve: a bound that the whole grid misses": (
        GOOD + "solve: {within: {parameters: [1, 1000]}, best: {n_layer: most}}",
        ["solve.within.parameters = [1, 1000]: no shape of the grid", "at least 46,"],
    ),
    "solve: a quantity that nothing predicts": (
        GOOD + "measure: {quantities: [parameters, unsupported_ops]}\n"
        "solve: {within: {unsupported_ops: [0, 1]}, best: {n_layer: most}}",
        ["solve: unsupported_ops: no formula"],
    ),
    "solve without a grid": (
        "base: gpt-2-124m\npoints: [{}]\nsolve: {within: {n_layer: [1, 2]}, best: {n_layer: most}}",
        ["points: not available with solve"],
    ),
    "solve on a device": (
        GOOD + "measure: {device: cpu}\nsolve: {within: {n_layer: [1, 2]}, best: {n_layer: most}}",
        ["measure.device = 'cpu': solve has no points before the run", "auto, meta"],
    ),
    "number to base 60": (  # 90 layers, of what was meant as 1 to 30
        "base: palm-8b\ngrid: {n_layer: [1:30]}",
        ["line 4: 1:30: YAML 1.1 reads 90; write that"],
    ),
    "number to base 8": ("base: palm-8b\ngrid: {n_layer: [010]}", ["010: YAML 1.1 reads 8"]),
    "constraint on a quantity": (  # it was taken for the field `parallel`
        "base: palm-8b\ngrid: {n_layer: [2]}\nconstraints: [parameters > 3]",
        ["parameters: a quantity, of a model that is made first; allowed: fields, or solve"],
    ),
    "zero": ("base: palm\ngrid: {n_layer: [0]}", ["grid.n_layer[0] = 0", "at least 1"]),
    "negative": ("base: palm\npoints: [{n_layer: -3}]", ["points[0].n_layer = -3", "at least 1"]),
    "text for a list": ("base: palm\ngrid: {n_layer: 3}", ["grid.n_layer = 3", "list"]),
    "heads that do not divide": (
        "base: gpt-2-124m\ngrid: {n_head: [7]}",
        ["d_head = 109.714 is not a whole number", "n_head = 7"],
    ),
    "KV heads that do not divide heads": (
        "base: llama-3-8b\ngrid: {n_kv_head: [3]}",
        ["n_kv_head = 3 does not divide n_head = 32"],
    ),
    "unknown base": ("base: gtp-2\ngrid: {n_layer: [1]}", ["base = 'gtp-2'", "mean gpt-2?"]),
    "no base": ("points: [{n_layer: 3}]", ["points[0].base: missing"]),
    "missing field": (
        "base: decoder\nfixed: {d_model: 8, n_head: 2}\ngrid: {n_layer: [1]}",
        ["n_vocab: missing"],
    ),
    "unknown base in a grid": ("grid: {base: [palm, gtp-2]}", ["grid.base[1] = 'gtp-2'", "gpt-2?"]),
    "a quantity given twice": (  # each of its values was in the tables twice, totals doubled
        GOOD + "measure: {quantities: [parameters, parameters]}",
        ["measure.quantities = ['parameters', 'parameters']: contains parameters 2 times"],
    ),
    "a number of devices given twice": (GOOD + "layouts: [8, 4, 8]", ["contains 8 2 times"]),
    "a format that resembles none": (
        "base: palm-8b\ngrid: {weights: [none]}",
        ["grid.weights[0] = 'none': unknown (allowed: dtype, ", "; all 73 are in workflow/"],
    ),
    "several bases": ("base: [palm, gpt-2]\ngrid: {tied: [true]}", ["as grid: {base: [a, b]}"]),
    "two points of one label": (
        "base: palm-8b\npoints: [{n_layer: 1, label: a}, {n_layer: 2, label: a}]",
        ["points[1].label = 'a': is that of points[0] too; keep one"],
    ),
    "a point given twice": (
        "base: palm-8b\npoints: [{n_layer: 1, tied: true}, {tied: true, n_layer: 1}]",
        ["points[1]: is that of points[0] too"],
    ),
    "two ways to a base": ("base: palm\ngrid: {base: [palm]}", ["base = 'palm'", "keep one"]),
    "empty sweep": ("base: palm\n", ["grid and points are both empty"]),
    "empty axis": (
        "base: palm\ngrid: {n_layer: []}",
        ["grid.n_layer = []: must have at least 1 item"],
    ),
    "switch given twice": ("base: palm-8b\ngrid: {tied: [true, true]}", ["contains true 2 times"]),
    "value given twice": ("base: palm-8b\ngrid: {n_layer: [2, 2]}", ["grid.n_layer", "2 2 times"]),
    "all points dropped": (
        GOOD + "constraints: [n_layer > 5]",
        ["constraints: drop all 2 points"],
    ),
    "too many points": (
        "base: palm-8b\ngrid:\n  n_vocab: {from: 1, to: 1000, steps: 1000}\n"
        "  n_layer: {from: 1, to: 1000, steps: 1000}\n",
        ["1,000,000 points", "at most 100,000"],
    ),
    "range that falls": (
        "base: palm-8b\ngrid: {n_layer: {from: 9, to: 3, steps: 2}}",
        ["grid.n_layer", "from (9) must be less than to (3)"],
    ),
    "expression divides by zero": (
        GOOD + "derive: {d_ff: d_model / (n_layer - 1)}",
        ["'d_model / (n_layer - 1)' divides by zero", "n_layer = 1"],
    ),
    "expression names nothing": (GOOD + "derive: {d_ff: 4 * d_modle}", ["d_modle: unknown field"]),
    "expression is not one": (GOOD + "constraints: ['d_model %']", ["'d_model %'", "allowed: +"]),
    "expression calls": (GOOD + "derive: {d_ff: open('x')}", ["calls 'open'", "allowed: +"]),
    # Each named Python's lambda.
    "expression gives a function too much": (
        GOOD + 'derive: {mlps: "first(mlps, 7, 8)"}',
        ["derive.mlps: 'first(mlps, 7, 8)' gives first 3 values; allowed: 2"],
    ),
    "expression gives a function too little": (
        GOOD + "derive: {d_ff: max(d_model)}",
        ["derive.d_ff: 'max(d_model)' gives max 1 value; allowed: 2 or more"],
    ),
    "expression reaches inside": (GOOD + "derive: {d_ff: d_model.real}", ["attribute"]),
    "expression has a power": (GOOD + "derive: {d_ff: 9 ** 9 ** 9}", ["pow", "allowed: +"]),
    "expression multiplies text": (
        GOOD + "derive: {d_ff: \"'a' * 9\"}",
        ["d_ff", "'a' is not a number"],
    ),
    "expression about a field that a point lacks": (
        "points: [{base: palm-8b}, {base: embedding, n_vocab: 2, d_model: 3}]\n"
        "constraints: [n_layer > 3]",
        ["'n_layer > 3' has no value", "base = 'embedding'"],
    ),
    "expressions in a circle": (
        GOOD + "derive: {d_ff: d_model, d_model: d_ff}",
        ["derive: ", "is circular"],
    ),
    "derived and given": (GOOD + "derive: {n_layer: '3'}", ["derive.n_layer", "keep one"]),
    "fixed and swept": (GOOD + "fixed: {n_layer: 3}", ["fixed.n_layer", "keep one"]),
    "headline that is no point": (
        "points: [{base: palm-540b}]\nheadline: PaLM 541B\n",
        ["headline = 'PaLM 541B'", "did you mean PaLM 540B?"],
    ),
    "control character in a label": (
        'points: [{base: palm-540b, label: "L\\e]0;x\\a"}]\n',
        ["points[0].label = ", "contains a control character"],
    ),
    "text that changes direction in a derived field": (
        GOOD + 'derive: {n_layer: "3\u202e"}',
        ["derive.n_layer = '3\\u202e'", "contains a control character"],
    ),
    "count past int64": (
        "base: palm-540b\nfixed: {dtype: float32}\ngrid: {d_model: [4000000000]}",
        ["bytes of parameters in float32", "more than 9,223,372,036,854,775,807", "d_model"],
    ),
    "size past int64": ("base: palm\ngrid: {n_ctx: [99999999999999999999]}", ["at most 9,223"]),
    "cuda without CUDA": (GOOD + "measure: {device: cuda}", ["'cuda'", "no CUDA", "auto, meta"]),
    "no room on the CPU": (
        "base: palm\nfixed: {dtype: float32}\npoints: [{base: palm-540b}]\nmeasure: {device: cpu}",
        ["measure.device = 'cpu'", "2,161,425,899,520 bytes", "bytes, and 40% of", "auto, meta"],
    ),
    "no time at all": (
        GOOD + "measure: {timeout_s: 0}",
        ["measure.timeout_s = 0", "must be at least 1"],
    ),
    "no memory": (GOOD + "measure: {memory_gb: 0}", ["memory_gb = 0: must be more than 0"]),
    "workspace without a device": (
        GOOD + "measure: {device: auto, quantities: [workspace_bytes]}",
        ["device = 'auto'", "workspace_bytes is of a CUDA device", "allowed: cuda"],
    ),
    "blocks of a CPU": (
        "base: gpt-2-124m\ngrid: {batch: [1]}\nfixed: {backend: cpu}\n"
        "measure: {quantities: [peak_reserved_bytes]}",
        ["backend = 'cpu'", "peak_reserved_bytes is of a GPU", "allowed: gpu"],
    ),
    "resident on meta": (
        GOOD + "measure: {device: meta, quantities: [resident_bytes]}",
        ["device = 'meta'", "resident_bytes is memory of a CPU", "allowed: auto, cpu"],
    ),
    "resident with a GPU's kernels": (
        "base: gpt-2-124m\ngrid: {batch: [1]}\nmeasure: {quantities: [resident_peak_bytes]}",
        ["backend = 'gpu'", "resident_peak_bytes is memory of a CPU", "allowed: cpu"],
    ),
    "training without a loss": (
        "base: mlp\ngrid: {d_model: [2]}\nmeasure: {quantities: [activation_bytes]}",
        ["activation_bytes needs a language model", "mlp does not turn tokens into logits"],
    ),
    "FLOPs past int64": (
        "base: palm-540b\ngrid: {batch: [4096]}\nfixed: {length: 2048}\n"
        "measure: {quantities: [flops_backward]}",
        [
            "flops_backward = 18,",
            "more than 9,223,372,036,854,775,807",
            "smaller batch",
            "batch = 4096",
        ],
    ),
    "longer than there are places": (
        "base: gpt-2-124m\ngrid: {length: [1025]}\nmeasure: {quantities: [activation_bytes]}",
        ["length = 1,025", "n_ctx = 1,024", "at most 1,024"],
    ),
    "flash attention in single precision": (
        "base: gpt-2-124m\nfixed: {dtype: float32}\ngrid: {attention_kernel: [flash]}",
        ["dtype = float32", "bfloat16 or float16", "attention_kernel: math"],
    ),
    "flash attention with a mask": (
        "base: bloom-560m\nfixed: {dtype: bfloat16}\ngrid: {attention_kernel: [flash]}\n"
        "measure: {quantities: [activation_bytes]}",
        [
            "attention_kernel = 'flash'",
            "alibi adds to scores",
            "attention_kernel: efficient or math",
        ],
    ),
    "flash attention through a window": (
        "base: mistral-7b-v0.1\nfixed: {backend: cpu, attention_kernel: flash}\n"
        "grid: {length: [4097]}\nmeasure: {quantities: [cache_bytes]}",
        [
            "attention_kernel = 'flash'",
            "window = 4,096, of length = 4,097",
            "attention_kernel: math",
        ],
    ),
    "parts of a sequence with a window": (
        "base: mistral-7b-v0.1\nfixed: {context_parallel: 2, attention_kernel: flash}\n"
        "grid: {length: [8192]}\nmeasure: {quantities: [activation_bytes]}",
        ["context_parallel = 2", "window = 4,096, of length = 8,192", "context_parallel: 1"],
    ),
    "memory-efficient attention of a CPU": (
        "base: gpt-2-124m\nfixed: {backend: cpu}\ngrid: {attention_kernel: [efficient]}",
        [
            "attention_kernel = 'efficient'",
            "torch has none with backend: cpu",
            "attention_kernel: math",
        ],
    ),
    "heads that memory-efficient attention cannot load": (
        "base: palm-8b\nfixed: {d_head: 252, dtype: bfloat16}\n"
        "grid: {attention_kernel: [efficient]}\n"
        "measure: {quantities: [activation_bytes]}",
        ["d_head = 252", "in bfloat16 it takes multiples of 8", "attention_kernel: math"],
    ),
    "heads that flash attention does not know": (
        "base: palm-8b\nfixed: {d_head: 264, dtype: bfloat16}\ngrid: {attention_kernel: [flash]}\n"
        "measure: {quantities: [activation_bytes]}",
        ["d_head = 264", "multiples of 8 up to 256"],
    ),
    "keys of latents that flash attention does not know": (
        "base: deepseek-v2-lite\nfixed: {d_nope: 60, d_rope: 32, d_value: 92, dtype: bfloat16}\n"
        "grid: {attention_kernel: [flash]}\nmeasure: {quantities: [activation_bytes]}",
        ["d_nope + d_rope = 92", "multiples of 8 up to 256", "attention_kernel: math"],
    ),
    "values of latents that memory-efficient attention cannot load": (
        "base: deepseek-v2-lite\nfixed: {d_value: 92, dtype: bfloat16}\n"
        "grid: {attention_kernel: [efficient]}\nmeasure: {quantities: [activation_bytes]}",
        ["d_value = 92", "in 16 bits it takes multiples of 8", "attention_kernel: math"],
    ),
    "a GPU's kernels on a CPU": (
        "base: gpt-2-124m\ngrid: {n_layer: [1]}\n"
        "measure: {device: cpu, quantities: [activation_bytes]}",
        ["measure.device = 'cpu'", "backend: gpu", "allowed: backend: cpu, or device: auto, meta"],
    ),
    "a CPU's kernels on a GPU": (
        "base: gpt-2-124m\nfixed: {backend: cpu}\ngrid: {n_layer: [1]}\n"
        "measure: {device: cuda, quantities: [activation_bytes]}",
        ["measure.device = 'cuda'"],
    ),
    "a copy of what is precise": (
        "base: gpt-2-124m\nfixed: {dtype: float32}\ngrid: {master_weights: [true]}",
        ["master_weights = true", "dtype = float32", "bfloat16, float16"],
    ),
    "half precision with a CPU's kernels": (
        "base: gpt-2-124m\nfixed: {backend: cpu}\ngrid: {dtype: [bfloat16]}",
        ["dtype = bfloat16", "allowed: float32, float64"],
    ),
    "dropout where there is none": (
        "base: hybrid-368\nfixed: {dropout: true}\ngrid: {batch: [1]}\n"
        "measure: {quantities: [activation_bytes]}",
        ["dropout = true: the family hybrid has no such setting; allowed: false"],
    ),
    "dropout in a CPU's flash attention": (
        "base: gpt-2-124m\nfixed: {dropout: true, backend: cpu}\ngrid: {attention_kernel: [flash]}",
        ["dropout = true", "attention_kernel: math"],
    ),
    "a cache where there is none": (
        "base: transformer-xl-standard\ngrid: {batch: [1]}\nmeasure: {quantities: [cache_bytes]}",
        ["measure.quantities: transformer-xl keeps no cache"],
    ),
    "a cache of projected distances": (
        "base: bloom-560m\nfixed: {position: relative}\ngrid: {batch: [1]}\n"
        "measure: {quantities: [cache_bytes]}",
        ["relative projects distances", "no cache is known"],
    ),
    "a cache of a window with penalties": (
        "base: bloom-560m\nfixed: {mixers: sliding_attention, window: 4}\ngrid: {batch: [1]}\n"
        "measure: {quantities: [cache_bytes]}",
        ["alibi adds to scores of a window", "no cache is known"],
    ),
    "no room on the CPU for training": (
        "base: gpt-2-1558m\nfixed: {backend: cpu, batch: 4096}\ngrid: {n_layer: [48]}\n"
        "measure: {device: cpu, quantities: [activation_bytes]}",
        ["measure.device = 'cpu'", "largest model needs", "bytes, and 40% of", "auto, meta"],
    ),
    "points that are predicted alone": (
        "points: [{base: palm-8b}]\nmeasure: {device: none}",
        ["points: ", "measure.device: none", "allowed: a grid"],
    ),
    "a headline that is predicted alone": (
        GOOD + "headline: Mine\nmeasure: {device: none}",
        ["headline: ", "measure.device: none"],
    ),
    "too many predictions": (
        "base: palm-8b\nmeasure: {device: none}\ngrid:\n"
        "  n_vocab: {from: 1, to: 20000, steps: 20000}\n"
        "  n_layer: {from: 1, to: 6000, steps: 6000}\n",
        ["120,000,000 points", "at most 100,000,000"],
    ),
    "no prediction left": (
        GOOD + "constraints: [n_layer > 5]\nmeasure: {device: none}",
        ["constraints: drop all 2 points", "to predict"],
    ),
    "a prediction of what has no formula": (
        GOOD + "measure: {device: none, quantities: [unsupported_ops]}",
        ["measure.quantities: unsupported_ops", "no formula covers it"],
    ),
    "a check of too many combinations": (
        "base: palm-8b\nmeasure: {device: none}\ngrid:\n"
        "  n_vocab: {from: 1, to: 1000, steps: 1000}\n"
        "  n_layer: {from: 1, to: 1000, steps: 1000}\n"
        "constraints: [n_vocab > n_layer]",
        ["n_vocab > n_layer: depends on", "1,000,000 combinations", "at most 100,000"],
    ),
    "a word that is none of a pattern's": (
        "base: palm-8b\ngrid: {mixers: [attention, atention]}",
        ["grid.mixers[1] = 'atention': must be names"],
    ),
    "not UTF-8": ("base: \udce9\n", ["UTF-8"]),
}


@pytest.mark.parametrize(("text", "fragments"), ONE_MISTAKE.values(), ids=ONE_MISTAKE)
def test_one_mistake_one_line(mistakes, tmp_path, text, fragments):
    if "\udce9" in text:
        (tmp_path / "configs" / "sweeps" / "bad.yaml").write_bytes(b"title: \xe9\n")
        (line,) = mistakes()
    else:
        (line,) = mistakes(bad__yaml=text)
    assert line.startswith("configs/sweeps/bad.yaml: ")
    for fragment in fragments:
        assert fragment in line


def test_all_mistakes_of_all_files_at_once(mistakes):
    lines = mistakes(
        a__yaml="base: palm-8b\ngird: {}\nmeasure: {device: x}\n"
        "grid: {n_layer: [0, -1], tide: [true]}\n",
        b__yaml="base: gpt\ngrid: {n_layer: [1]}",
        good__yaml=GOOD,
    )
    files = [line.split(": ", 1)[0] for line in lines]
    assert files.count("configs/sweeps/a.yaml") == 5
    assert files.count("configs/sweeps/b.yaml") == 1
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("layers", "points"), [("1, 2", "1 more point"), ("1, 2, 3", "2 more points")]
)
def test_a_mistake_at_many_points_is_told_once(mistakes, layers, points):
    text = f"base: gpt-2-124m\nfixed: {{n_head: 5}}\ngrid: {{n_layer: [{layers}]}}"
    (line,) = mistakes(a__yaml=text)
    assert line.endswith(f"(at n_layer = 1 and {points})")


NEAREST = {
    "hidden_size": "d_model", "num_hidden_layers": "n_layer", "num_layers": "n_layer",
    "n_layers": "n_layer", "num_attention_heads": "n_head", "num_key_value_heads": "n_kv_head",
    "num_query_groups": "n_kv_head", "vocab_size": "n_vocab", "padded_vocab_size": "n_vocab",
    "intermediate_size": "d_ff", "ffn_dim": "d_ff", "ffn_hidden_size": "d_ff",
    "max_position_embeddings": "n_ctx", "seq_len": "length", "block_size": "n_ctx",
    "tie_word_embeddings": "tied", "batch_size": "batch", "train_batch_size": "batch",
    "sequence_length": "length", "attention_dropout": "dropout", "D_Model": "d_model",
    "n-layer": "n_layer", "d_modell": "d_model", "N KV head": "n_kv_head",
    "gradient_checkpointing": "recompute", "torch_dtype": "dtype",
}  # fmt: skip


@pytest.mark.parametrize("name", NEAREST)
def test_a_field_is_found_by_its_other_names(mistakes, name):
    (line,) = mistakes(a__yaml=f"base: llama-3-8b\ngrid: {{{name}: [1]}}")
    assert f"unknown field; did you mean {NEAREST[name]}? (allowed: {NEAREST[name]}" in line
    assert line.endswith(" are in workflow/schemas/sweep.schema.json)")
    assert len(line) < 300


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("GPT-2", "gpt-2"),
        ("gpt-2-small", "gpt-2"),
        ("GPT2_124M", "gpt-2-124m"),
        ("Llama 3 8B", "llama-3-8b"),
        ("palm540b", "palm-540b"),
        ("t5small", "t5-small"),
        ("decodr", "decoder"),
    ],
)
def test_a_base_is_found_whatever_its_case_and_punctuation(mistakes, name, base):
    (line,) = mistakes(a__yaml=f"base: {name}\ngrid: {{n_layer: [1]}}")
    assert f"unknown base '{name}'; did you mean {base}? (allowed: {base}" in line
    assert line.endswith(" are in configs/models)")
    assert len(line) < 300


def test_where_nothing_is_near_the_message_says_where_all_stand(mistakes):
    (line,) = mistakes(a__yaml="base: xyzzy\ngrid: {n_layer: [1]}")
    assert "did you mean" not in line
    assert re.search(r"unknown base 'xyzzy' \(allowed: all \d{3} are in configs/models\)$", line)
    with pytest.raises(ValueError, match=r"all \d{3} are in configs/models\)$"):
        catalogue_of(ROOT / "configs" / "models")["xyzzy"]  # as where the package is installed


def test_an_unknown_quantity(mistakes):
    (line,) = mistakes(a__yaml=GOOD + "measure: {quantities: [parameters, kv_cache]}")
    assert "measure.quantities[1] = 'kv_cache': unknown; did you mean cache_bytes?" in line
    assert "all 44 are in workflow/schemas/sweep.schema.json" in line


@pytest.mark.parametrize("name", ["a b.yaml", "ä.yaml", "a.b.yaml", "a;b.yaml"])
def test_names_that_would_break_a_path(mistakes, name):
    (line,) = mistakes(**{name: GOOD})
    assert "allowed: letters, digits, hyphens and underscores" in line


@pytest.mark.parametrize(
    "name",
    ["logs", "Provenance", "gpt-2-ledger", "calculator", "content", "all"],
)
def test_names_that_the_report_needs(mistakes, name):
    (line,) = mistakes(**{f"{name}.yaml": GOOD})
    assert "allowed: any name but" in line


IGNORED = (
    ".#a.yaml",
    "._a.yaml",
    ".a.yaml",
    ".a.yaml.swp",
    "a.yaml~",
    "#a.yaml#",
    "#a.yaml",
    "a.txt",
)


def test_files_of_editors_and_systems_are_ignored(mistakes, tmp_path):
    for folder in ("sweeps", "models"):
        if folder == "models":
            (tmp_path / "configs/models").unlink()
            (tmp_path / "configs/models").mkdir()
            for path in (ROOT / "configs/models").iterdir():
                (tmp_path / "configs/models" / path.name).symlink_to(path)
        for name in IGNORED:
            (tmp_path / "configs" / folder / name).write_bytes(b"\x00\xff{")
        (tmp_path / "configs" / folder / ".#lock.yaml").symlink_to("user@host.123:456")
    (tmp_path / "configs/sweeps/good.yaml").write_text(f"title: t\nquestion: q\n{GOOD}")
    assert [sweep.name for sweep in chosen_sweeps(None)] == ["good"]


def test_endings_may_be_written_in_capitals(mistakes, tmp_path):
    series = "title: t\nfamily: mlp\nsource: s\nmodels: {tiny: {label: l, fields: {d_model: 2}}}\n"
    models = tmp_path / "configs/models"
    models.unlink()
    models.mkdir()
    (models / "M.YML").write_text(series)
    (tmp_path / "configs/sweeps/A.YAML").write_text("title: t\nquestion: q\npoints: [{base: tiny}]")
    assert [sweep.name for sweep in chosen_sweeps(None)] == ["A"]


@pytest.mark.parametrize("part", PARTS_OF_SWEEP)
def test_a_sweep_has_not_the_name_of_a_part_of_another(mistakes, part):
    (line,) = mistakes(**{"width.yaml": GOOD, f"width-{part}.yaml": GOOD})
    assert line.startswith(
        f"configs/sweeps/width-{part}.yaml: the report uses this name for a part of"
    )


def test_no_id_of_the_page_is_free_for_a_sweep():
    """Every id that a page without sweeps has, written out or computed, is reserved."""
    written = "".join(path.read_text() for path in REPORT.rglob("*.html.j2"))
    for name in re.findall(r"""\bid=["']?([^"'\s>{]+)["'\s>]""", written):
        assert name in reserved_names()


def test_two_sweeps_of_one_name(mistakes):
    (line,) = mistakes(same__yaml=GOOD, same__yml=GOOD)
    assert line.startswith("configs/sweeps/same.yml: configs/sweeps/same.yaml has the same name")


def test_no_sweeps(mistakes):
    assert mistakes() == ["configs/sweeps: contains no sweep; add a YAML file"]


def test_unknown_sweep_asked_for(mistakes, tmp_path):
    (tmp_path / "configs" / "sweeps" / "width.yaml").write_text(f"title: t\nquestion: q\n{GOOD}")
    with pytest.raises(InputError, match=r"sweeps=widht: .*did you mean width\?"):
        chosen_sweeps("widht")


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("title: t\nfamily: decodr\n", "did you mean decoder?"),
        ("title: t\nfamily: decoder\nmodel: {}\n", "did you mean models?"),
        ("title: t\nfamily: decoder\nmodels: {m: {label: m, fields: {}}}\n", "models.m.source"),
        (
            "title: t\nfamily: decoder\nmodels: {decoder: {label: m, source: s, fields: {}}}",
            "taken",
        ),
    ],
)
def test_model_files(tmp_path, text, fragment):
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(InputError, match=fragment.replace("?", r"\?")) as refusal:
        Catalogue(tmp_path)
    assert all(line.startswith(str(tmp_path / "m.yaml")) for line in refusal.value.mistakes)


def test_all_mistakes_in_one_round(mistakes):
    lines = mistakes(
        a__yaml="!title: t\nbase: gpt-2-124m\ngrid: {n_head: [5], n_lyer: [1], n_layer: [2.5]}\n"
        "fixed: {tied: 3}\nconstraints: [d_modle > 1]\nmeasure: {device: x, timeout_s: 0}\n"
    )
    for fragment in (
        "question: missing", "grid.n_layer[0] = 2.5", "grid.n_lyer: unknown", "fixed.tied = 3",
        "d_modle: unknown", "measure.device", "measure.timeout_s = 0",
    ):  # fmt: skip
        assert sum(fragment in line for line in lines) == 1, fragment
    assert len(lines) == 7


@pytest.mark.parametrize("key", ["title", "question"])
def test_what_is_wrong_with_points_is_said_where_a_heading_is_missing(mistakes, key):
    headings = {"title": "t", "question": "q"}
    del headings[key]
    ((name, text),) = headings.items()
    lines = mistakes(
        a__yaml=f"!{name}: {text}\nbase: gpt-2-124m\nheadline: x\ngrid: {{n_head: [5, 6]}}\n"
    )
    assert [line.split(": ")[1].split(" = ")[0] for line in lines] == [key, "d_head"]


def test_a_headline_is_checked_where_a_title_is_missing(mistakes):
    lines = mistakes(a__yaml=f"!question: q\nheadline: x\n{GOOD}")
    assert [line.split(": ")[1] for line in lines] == ["title", "headline = 'x'"]


@pytest.mark.parametrize("device", ["auto", "none"])
def test_what_follows_from_a_missing_field_is_not_missing_too(mistakes, device):
    (line,) = mistakes(
        a__yaml="base: decoder\nfixed: {d_model: 8, n_vocab: 3, n_ctx: 3}\ngrid: {n_layer: [1]}\n"
        f"measure: {{device: {device}}}"
    )
    assert "n_head: missing" in line


def test_too_many_points_are_offered_to_be_predicted(mistakes):
    (line,) = mistakes(a__yaml=ONE_MISTAKE["too many points"][0])
    assert "up to 100,000,000 that are predicted and not measured (measure.device: none)" in line


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("base: palm-8b\ngrid: {n_layer: [.nan]}", "grid.n_layer[0] = nan"),
        (GOOD + "fixed: {tied: .NaN}", "fixed.tied = nan"),
        (GOOD + "order: .nan", "order = nan"),
        (GOOD + "measure: {memory_share: .nan}", "measure.memory_share = nan"),
        (
            "base: palm-8b\ngrid: {n_layer: {from: .nan, to: 3, steps: 2}}",
            "grid.n_layer.from = nan",
        ),
    ],
)
def test_a_nan_is_named_with_its_key(mistakes, text, key):
    (line,) = mistakes(a__yaml=text)
    assert f"{key}: must be" in line


@pytest.mark.parametrize("model_type", ["llama", "xlnet"])
@pytest.mark.parametrize(
    ("value", "key"), [("NaN", "hidden_size"), ("[1, NaN]", "hidden_size"), ('{"a": NaN}', "a")]
)
def test_a_nan_in_a_config_is_named_with_its_key(mistakes, tmp_path, model_type, value, key):
    (tmp_path / "configs/sweeps/config.json").write_text(
        f'{{"model_type": "{model_type}", "hidden_size": {value}}}'
    )
    (line,) = mistakes(a__yaml="points: [{base: config.json}]")
    assert f": {key} = NaN: must be a number" in line


@pytest.mark.parametrize(
    ("model_type", "near"), [("GPT-2", "gpt2"), ("llamma", "llama"), ("Qwen2.5", "qwen2")]
)
def test_an_unknown_model_type(mistakes, tmp_path, model_type, near):
    config = f'{{"model_type": "{model_type}"}}'
    (tmp_path / "configs/sweeps/config.json").write_text(config)
    (line,) = mistakes(a__yaml="points: [{base: config.json}]")
    assert f"did you mean {near}? (allowed: {near}, " in line
    (number,) = re.findall(r"all (\d+) are in python -c ", line)
    assert int(number) > 800


def test_results_that_are_a_file(tmp_path):
    (tmp_path / "results").touch()
    with pytest.raises(InputError, match="results: is a file; results need a folder"):
        preflight.check_results(tmp_path / "results")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"link: a link to .*nowhere, which does not exist"):
        preflight.check_results(tmp_path / "link")


def with_few_addresses(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32)),
    )


def test_too_few_addresses_for_the_renderer():
    check = "from modelbudget.workflow import preflight; preflight.check_renderer({})"
    run = with_few_addresses(check.format([]))
    *_, last = run.stderr.splitlines()
    assert last.endswith(
        "ulimit -v = 4,194,304 kB: too little address space for the renderer of charts; allowed: "
        "ulimit -v unlimited, or targets without charts"
    )
    assert with_few_addresses(check.format(["results/s/comparison.parquet"])).returncode == 0
