"""The command, as its users start it."""

import json
import multiprocessing
import os
import pty
import re
import shlex
import subprocess
import sys
import sysconfig
import termios
import time
from functools import partial
from pathlib import Path

import pytest
import yaml
from helpers import forked_programs
from helpers.project import ROOT
from helpers.tiers import ALL

from modelbudget import __version__
from modelbudget.api import results
from modelbudget.common.errors import InputError

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}  # fmt: skip
PARAMETERS = 2 * 1000 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 172 + 2 * 64) + 64
"""Of that model, by hand: embedding and head, two layers, final norm."""

TIMEOUT_S = 120


def command(*arguments: str, **settings) -> subprocess.CompletedProcess:
    """Run it, forked where no more than a folder is set (and not with TESTS=all)."""
    folder, variables = settings.pop("cwd", ROOT), {**os.environ, "PYTHONPATH": str(ROOT)}
    if not settings and not ALL:
        return forked_programs.command(folder, arguments, variables, TIMEOUT_S)
    return subprocess.run(
        [sys.executable, "-m", "modelbudget", *arguments],
        cwd=folder,
        env=variables | settings.pop("env", {}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        **settings,
    )


@pytest.fixture
def llama(tmp_path):
    """Write a config.json, with other keys than the given ones."""

    def write(**other):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | other))
        return tmp_path

    return write


def test_the_checkout_has_the_command_after_its_first_make(tmp_path):
    """Of a virtual environment whose packages are those of this one."""
    for name in ("Makefile", "modelbudget", "configs", "requirements.lock"):
        (tmp_path / name).symlink_to(ROOT / name)
    run = partial(subprocess.run, check=True, capture_output=True, text=True)
    run([sys.executable, "-m", "venv", "--without-pip", ".venv"], cwd=tmp_path)
    (tmp_path / ".venv" / ".installed").touch()
    run(["make", ".venv/bin/modelbudget"], cwd=tmp_path)
    (tmp_path / "command").symlink_to(".venv/bin/modelbudget")
    shared = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
    for program in ([".venv/bin/python", "-m", "modelbudget"], ["command"]):
        path = [str(tmp_path / program[0]), *program[1:], "--version"]
        assert run(path, cwd="/", env=shared).stdout == f"modelbudget {__version__}\n"


def test_a_model_by_name_as_text_and_json():
    text = command("palm-540b")
    assert text.returncode == 0
    assert text.stderr == ""
    assert "540,356,474,880" in text.stdout
    assert "\x1b" not in text.stdout
    found = json.loads(command("palm-540b", "--json", "--length", "2048").stdout)
    assert found["run"]["length"] == 2048
    # 118 layers, one key and one value head of 256 channels, 2,048 tokens, 2 bytes
    assert found["quantities"]["cache_bytes"]["total"] == 118 * 2 * 256 * 2048 * 2
    assert found["quantities"]["parameters"]["components"]["embedding.token"] == 256_000 * 18_432
    assert found["active_parameters"] is None
    of_experts = json.loads(command("mixtral-8x7b", "--json").stdout)
    # Of 32 layers, two of eight experts with three matrices each: 12.9B in Jiang et al. (2024)
    without = 46_702_792_704 - 32 * 6 * 3 * 4096 * 14_336
    assert of_experts["active_parameters"] == without == 12_879_925_248


def test_a_config_by_file_and_by_folder(llama):
    folder = llama()
    names = (".", "config.json")
    answers = [command(name, "--json", "--batch", "8", cwd=folder) for name in names]
    found = [json.loads(answer.stdout) for answer in answers]
    for one in found:
        assert one["quantities"] == found[0]["quantities"]
        assert one["quantities"]["parameters"]["total"] == PARAMETERS
        assert one["quantities"]["parameter_bytes"]["total"] == 2 * PARAMETERS  # its dtype
        assert one["run"]["batch"] == 8


def test_other_formats(llama):
    folder = llama()
    rows = command(".", "--csv", cwd=folder).stdout.splitlines()
    assert rows[0] == '"model","component","quantity","each","instances","value","source"'
    up = next(row for row in rows if '"layer.mlp.up","parameters"' in row)
    assert up.endswith('11008,2,22016,"formula"')
    table = command(".", "--markdown", "--train", cwd=folder).stdout
    assert f"| total |  | {PARAMETERS:,} | 100 % |" in table
    assert "cache" not in table


def test_colours_and_bars_on_a_terminal_alone():
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (50, 74))
    process = subprocess.Popen(
        [sys.executable, "-m", "modelbudget", "palm-540b"], cwd=ROOT, stdout=follower,
        env={k: v for k, v in os.environ.items() if k != "COLUMNS"} | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(follower)
    shown = b""
    try:
        while part := os.read(leader, 65536):
            shown += part
    except OSError:  # the end of a terminal
        pass
    assert process.wait() == 0
    assert "█".encode() in shown
    assert b"\x1b[" in shown
    assert shown.count(b"160,356,630,528") == 3  # digits are never cut
    assert b"118 \xc3\x97 1,358,954,496" not in shown


@pytest.mark.parametrize("before", ["", "show ", "compare gpt-2-124m "])
def test_a_shell_completes_names_of_models(before):
    words = f"modelbudget {before}palm-5"
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    found = command(env=asked | {"_MODELBUDGET_COMPLETE": "complete_bash"}).stdout.split()
    assert "palm-540b" in found
    assert all(name.startswith("palm-5") for name in found)


def test_what_fits_is_what_the_readme_says():
    """Traced there: a batch of 8 with our modules, of 5 as the class computes it.

    Of fewer devices, two that divide shards fit too (predicted).
    """
    fields = ("recompute=full", "attention_kernel=flash", "foreach=false", "master_weights=true",
              "reduce_dtype=float32")  # fmt: skip
    found = command(
        "llama-3-8b", "--fit", "80GB", "--devices", "64", "--dtype", "bfloat16", "--length",
        "8192", "--train", "--json", *(word for field in fields for word in ("--set", field)),
    )  # fmt: skip
    (fit,) = json.loads(found.stdout)["fit"]
    assert fit["largest"]["batch"] == 8
    assert fit["largest_of_class"]["batch"] == 5
    assert fit["fits"]
    shards = {"data_parallel": 64, "tensor_parallel": 1, "pipeline_parallel": 1, "zero": 3}
    layouts = fit["layouts"]
    (one,) = [row for row in layouts if shards.items() <= row.items()]
    assert one["bytes"] == fit["needed"]
    assert min(row["devices"] for row in layouts if row["fits"]) == 2


def test_bytes_are_those_of_one_device_where_several_share_a_model():
    alone, shared = (
        command("gpt-2-124m", "--train", "--set", f"zero={zero}", "--set", "data_parallel=8")
        for zero in (0, 3)
    )
    assert "of one device" not in alone.stdout
    assert "bytes and FLOPs of one device" in shared.stdout


def test_models_are_found_and_compared():
    listed = command("models", "palm", "--json")
    assert {one["name"]: one["parameters"] for one in json.loads(listed.stdout)["models"]}[
        "palm-540b"
    ] == 540_356_474_880
    assert command("models", "deepseek-v3.1").stdout.splitlines()[2].startswith("deepseek-v3 ")
    assert "qwen-2.5-32b" not in command("models", "qwen-3").stdout  # of DeepSeek's Qwen-32B
    table = command("compare", "gpt-2-124m", "gpt-2-1558m", "--markdown").stdout
    assert "| embedding.token | 38,597,376 | 80,411,200 |" in table
    assert "1,557,611,200" in table


def test_a_model_under_every_convention(llama):
    folder = str(llama())
    text = command("conventions", folder, "--length", "512")
    assert text.returncode == 0
    (without,) = re.findall(r"without_vocabulary +([\d,]+)", text.stdout)
    assert int(without.replace(",", "")) == PARAMETERS - 2 * 1000 * 64
    rows = json.loads(command("conventions", folder, "--length", "512", "--json").stdout)
    values = {row["convention"]: row["value"] for row in rows["conventions"]}
    assert values["total"] == PARAMETERS
    assert values["palm"] == 6 * PARAMETERS + 12 * 2 * 64 * 512
    (executed,) = re.findall(r"executed +([\d,]+) +100 %", text.stdout)
    assert values["executed"] == int(executed.replace(",", ""))
    mamba = command("conventions", "mamba-130m")
    assert (mamba.returncode, "kaplan: selective-scan has no n_head" in mamba.stderr) == (0, True)


def test_measured_equals_predicted_with_exit_code_0(llama):
    found = command("measure", ".", "--train", "--length", "32", cwd=llama())
    assert found.returncode == 0, found.stderr
    assert "comparisons agree" in found.stderr
    assert f"LlamaForCausalLM has {PARAMETERS:,} parameters, equal" in found.stderr


def test_what_cannot_be_measured_is_not_offered(llama):
    """Neither training without a head, nor bytes of a format that is not known."""
    bert = {"model_type": "bert", "architectures": ["BertModel"], "num_key_value_heads": None}
    reason = "lm_head = false: gradient_bytes needs logits and a loss"
    folder = llama(**bert)
    shown, measured = command(".", cwd=folder), command("measure", ".", "--train", cwd=folder)
    assert reason in shown.stderr
    assert "measures it" not in shown.stderr
    assert (measured.returncode, reason in measured.stderr) == (2, True)
    folder = llama(quantization_config={"quant_method": "vptq"})
    reason = "quantised weights: weights = unknown: the bytes are not known"
    shown, measured = command(".", cwd=folder), command("measure", ".", cwd=folder)
    assert reason in shown.stderr
    assert "measures it" not in shown.stderr
    assert (measured.returncode, reason in measured.stderr) == (0, True)


WRONG = """
import sys
from modelbudget.api.command.app import main
from modelbudget.architecture.terms import Term
from modelbudget.families.decoder import Decoder

true = Decoder.parameters
Decoder.parameters = staticmethod(
    lambda a: {n: Term(t.each + (n == "norm.final"), t.instances) for n, t in true(a).items()}
)
sys.argv = ["modelbudget", "measure", "gpt-2-124m"]
main()
"""


def test_a_difference_is_exit_code_1():
    """The formula of a family is replaced where the module is not."""
    found = forked_programs.python(ROOT, WRONG, TIMEOUT_S)
    assert found.returncode == 1, found.stderr
    assert "norm.final, parameters" in found.stdout
    assert "GPT2LMHeadModel has 124,439,808 parameters, -1" in found.stderr


def test_a_users_module_is_measured_and_never_predicted(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef build(): return nn.Sequential(nn.Embedding(10, 4), "
        "nn.Linear(4, 10))\n"
    )
    found = command("measure", "mine:build", "--csv", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert '"parameters"' in found.stdout
    assert "no formula to compare with" in found.stderr
    assert "no formula covers it" in command("mine:build", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (["palm-54b"], "did you mean palm-540b?"),
        (["palm-540b", "--dtype", "int8"], "dtype = 'int8': must be 'float64'"),
        (["palm-540b", "--set", "lenght=3"], "lenght = 3: unknown field; did you mean length?"),
        (["palm-540b", "--set", "length"], "--set length: no value; allowed: FIELD=VALUE"),
        (["palm-540b", "--set", "lora_r: 32"], "no equals sign; write --set lora_r=32"),
        (["palm-540b", "--set", " lenght = 3"], "palm-540b: lenght = 3: unknown field"),
        (["palm-540b", "--dtype", "0"], "must be 'float64', 'float32', 'bfloat16' or 'float16'\n"),
        (["palm-540b", "--devices", "x"], "--devices = 'x': must be a whole number\n"),
        (["palm-540b", "--devices", "0"], "--devices = '0': must be at least 1\n"),
        (["palm-540b", "--engine-share", "x"], "--engine-share = 'x': must be a number\n"),
        (["palm-540b", "--fit", "h1"], "h100-80gb"),
        (["palm-540b", "--bad"], "--bad"),
        (["none/config.json"], "none/config.json: no such file"),
        (["none/model.safetensors"], "none/model.safetensors: no such file"),
        (["nothere.here:build"], "no such file"),
        (["compare", "palm-540b"], "two or more"),
        (["models", "nosuchmodel"], "none"),
        (["sweep", "none.yaml"], "none.yaml: no such file"),
        (["check", "none.lock"], "none.lock"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(arguments, about):
    found = command(*arguments)
    assert found.returncode == 2, found.stderr
    assert found.stdout == ""
    assert about in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("rest", "mistake"),
    [
        (
            "base: gpt-2\ngrid: {n_vocab: [8, 9]}\nfixed: {d_model: 64, n_head: 1}\n",
            "n_layer: missing; it must be given (at n_vocab = 8",
        ),
        (
            "base: gpt-2-124m\ngrid: {n_layer: [1, 2]}\n"
            "solve: {within: {parameters: [1, 2]}, best: {vocab: most}}\n",
            "solve.best.vocab: unknown name; did you mean n_vocab?",
        ),
    ],
)
def test_a_sweep_is_refused_by_its_own_name_before_anything_is_written(tmp_path, rest, mistake):
    (tmp_path / "mine.yaml").write_text(f"title: t\nquestion: q\n{rest}")
    found = command("sweep", "mine.yaml", cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr.startswith(f"mine.yaml: {mistake}")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_a_prediction_imports_neither_torch_nor_tables(llama):
    code = (
        "import sys; from modelbudget.api.command.app import main\n"
        "try: main()\nexcept SystemExit: pass\nprint(*sys.modules, file=sys.stderr)"
    )
    # Training of this class was compared with formulas; its inference would be traced.
    for arguments in (["palm-540b"], [str(llama() / "config.json"), "--train"]):
        found = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        loaded = set(found.stderr.split())
        assert not loaded & {
            "torch",
            "transformers",
            "pandas",
            "polars",
            "sympy",
            "altair",
            "numpy",
        }
        assert "modelbudget.predict.formula" in loaded


def test_a_budget_file_alone_runs_no_code(tmp_path):
    """It may come with somebody's pull request: only the command line allows its function."""
    own = "from torch import nn\nopen('ran', 'w')\n\ndef build():\n    return nn.Linear(3, 5)\n"
    (tmp_path / "own.py").write_text(own)
    assert command("lock", "own:build", cwd=tmp_path).returncode == 0
    (tmp_path / "ran").unlink()
    refused = command("check", cwd=tmp_path)
    assert refused.returncode == 2
    assert "budget.lock: models: 'own:build': is code" in refused.stderr
    assert not (tmp_path / "ran").exists()
    for allowed in ("own:build", "own"):
        assert command("check", "--module", allowed, cwd=tmp_path).returncode == 0
    assert command("check", "--module", "ow", cwd=tmp_path).returncode == 2


def test_a_budget_is_locked_checked_and_broken(llama):
    folder = llama()
    assert command("lock", "config.json", "--batch", "2", cwd=folder).returncode == 0
    assert command("check", cwd=folder).returncode == 0
    llama(intermediate_size=173)
    changed = command("check", cwd=folder)
    assert changed.returncode == 1
    assert "| parameters | layer.mlp.up | 22,016 | 22,144 | +128 |" in changed.stdout
    assert "embedding" not in changed.stdout
    (folder / "test_budget.py").write_text(
        "def test_it(budget):\n    budget('budget.lock')\n"
        "def test_none(budget):\n    budget('none.lock')\n"
    )
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "modelbudget.api.pytest_plugin"],
        cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert tested.returncode == 1
    assert "| parameters | layer.mlp.up | 22,016 | 22,144 | +128 |" in tested.stdout
    assert "\nnone.lock: no such file\n" in tested.stdout  # it was below a traceback


def test_several_models_are_locked_and_whole_models_are_compared(llama):
    """Two parts of one module swap their sizes: its budget by component changes, not the whole."""
    folder = llama()
    built = (
        "from torch import nn\ndef build():\n"
        "    return nn.ModuleDict({%r: nn.Linear(3, 5), %r: nn.Linear(5, 3)})\n"
    )
    (folder / "own.py").write_text(built % ("a", "b"))
    assert command("lock", "own:build", "config.json", cwd=folder).returncode == 0
    # Of another size: within one second, Python takes a file of the same size to be the same.
    (folder / "own.py").write_text(built % ("b", "a") + "# swapped\n")
    llama(vocab_size=1001)
    both = command("check", "--module", "own", cwd=folder).stdout
    assert "| own:build | parameters | a | 20 | 18 | -2 |" in both
    assert "| config.json | parameters | head | 64,000 | 64,064 | +64 |" in both
    whole = command("check", "--module", "own", "--totals", cwd=folder).stdout
    assert f"| parameters | total | {PARAMETERS:,} | {PARAMETERS + 128:,} | +128 |" in whole
    assert "own:build" not in whole


def test_the_workflow_of_a_public_ci_installs_no_bare_name():
    """The name is free for anybody on an index, where README does not say that the project is."""
    workflow = yaml.safe_load((ROOT / "docs/github-actions/budget.yml").read_text())
    lines = [step.get("run", "") for step in workflow["jobs"]["check"]["steps"]]
    (installs,) = [line for line in lines if "pip install" in line]
    (installed,) = shlex.split(installs.removeprefix("pip install"))
    path = workflow["env"][installed.removeprefix("$")]
    assert "/" in path
    assert Path(path).name == f"modelbudget-{__version__}-py3-none-any.whl"


def test_the_workflow_of_a_public_ci_posts_the_difference(llama, tmp_path):
    """Its two shell steps, with `gh` and `modelbudget` as small scripts."""
    folder, tools = llama(), tmp_path / "tools"
    tools.mkdir()
    scripts = {
        "gh": 'echo "$@" > said; cat comment.md >> said',
        "modelbudget": f'{sys.executable} -m modelbudget "$@"',
    }
    for name, line in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    settings = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "PULL_REQUEST": "7",
    }
    workflow = yaml.safe_load((ROOT / "docs/github-actions/budget.yml").read_text())
    steps = {step.get("name"): step.get("run") for step in workflow["jobs"]["check"]["steps"]}

    def run(step: str) -> int:
        return subprocess.run(
            ["bash", "-e", "-c", steps[step]], cwd=folder, env=settings
        ).returncode

    assert command("lock", "config.json", cwd=folder).returncode == 0
    assert run("Compare with budget.lock") == 0
    llama(intermediate_size=173)
    assert run("Compare with budget.lock") == 1
    assert run("Post the difference") == 0
    changed = "| parameters | layer.mlp.up | 22,016 | 22,144 | +128 |"
    said = (folder / "said").read_text()
    assert said.startswith("pr comment 7 --edit-last --create-if-none")
    assert changed in said
    assert changed in (tmp_path / "summary.md").read_text()


def test_a_full_disk_is_one_line(tmp_path):
    """Of what is printed, and of the folder of a sweep: a traceback before."""
    code = [sys.executable, "-m", "modelbudget", "models", "palm"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(code, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (2, "output: No space left on device\n")


def test_snakemake_gets_its_arguments_while_a_check_of_the_sweep_goes_on(tmp_path, monkeypatch):
    """The process that checks a class without a formula had the pipe open; no run began."""
    check = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
    read = results.read
    monkeypatch.setattr(results, "read", lambda *of: (check.start(), read(*of))[1])
    reads_all = "import signal, sys; signal.alarm(20); text = sys.stdin.read()"
    ends = "; sys.exit(3 if 'modules=a.b:c' in text else 4)"
    monkeypatch.setattr(results, "SNAKEMAKE", reads_all + ends)
    (tmp_path / "a.yaml").write_text("{title: t, question: q, points: [{base: gpt-2-124m}]}")
    with pytest.raises(InputError, match="exit code 3"):
        results.sweep(tmp_path / "a.yaml", module="a.b:c")
    check.kill()
