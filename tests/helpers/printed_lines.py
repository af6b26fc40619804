"""The commands and the Python that README and docs print, for `helpers/run_lines.py` to run."""

import ast
import json
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
from safetensors.numpy import save_file

from helpers.config_files import LLAMA
from helpers.gguf_files import KEYS_OF_FILE, written
from helpers.project import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUNNER = Path(__file__).with_name("run_lines.py")
TIMEOUT_S = 900
"""Seconds for all lines together."""
SERVER_LOG = """\
INFO core.py Initializing a V1 LLM engine with config: model='Qwen/Qwen3-14B', dtype=torch.bfloat16
INFO gpu_worker.py Available KV cache memory: 6.51 GiB
INFO kv_cache_utils.py GPU KV cache size: 42,656 tokens
INFO kv_cache_utils.py Maximum concurrency for 32,768 tokens per request: 1.30x
"""
"""As vLLM prints it, with the numbers of LMCache issue 1739, as README and docs show them."""


def blocks(language: str) -> list[str]:
    """The blocks of code of all pages in a language."""
    texts = (page.read_text(encoding="utf-8") for page in PAGES)
    return [
        block for text in texts for block in re.findall(rf"```{language}\n(.*?)```", text, re.S)
    ]


def commands_of(text: str) -> list[list[str]]:
    """The words after `modelbudget` in each line of a shell block."""
    text = text.replace("\\\n", " ").replace("&&", "\n")
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [line[1:] for line in lines if line[:1] == ["modelbudget"]]


def commands() -> list[list[str]]:
    """Those of all shell blocks, once."""
    return [list(line) for line in dict.fromkeys(map(tuple, commands_of("\n".join(blocks("sh")))))]


def answers() -> list[tuple[str, list[str], str]]:
    """The blocks of text that follow a shell block with one command: page, its words, the text."""
    found = []
    for page in PAGES:
        fences = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
        for (language, line), (of_next, text) in pairwise(fences):
            printed = commands_of(line) if (language, of_next) == ("sh", "text") else []
            found += [(page.relative_to(ROOT).as_posix(), words, text) for words in printed[-1:]]
    return found


def programs() -> list[list[str]]:
    """The statements of each block of Python that begins with imports."""
    found = [ast.parse(text).body for text in blocks("python") if text.startswith("import ")]
    return [[ast.unparse(statement) for statement in program] for program in found]


def write_files(folder: Path) -> None:
    """Write what the lines read: configs, checkpoints, logs, a sweep, a module and results."""
    (folder / "config.json").write_text(json.dumps(LLAMA))
    checkpoint = folder / "llama-folder"
    checkpoint.mkdir()
    shutil.copy(folder / "config.json", checkpoint)
    save_file(tensors(), checkpoint / "model.safetensors")
    written(folder / "model.gguf", KEYS_OF_FILE, {})
    (folder / "server.log").write_text(SERVER_LOG)
    (folder / "train.log").write_text("trainable params: 524,288 || all params: 1,236,338,688\n")
    (folder / "my-sweep.yaml").write_text(
        "title: Two\nquestion: Why?\nbase: gpt-2-124m\ngrid: {n_layer: [1, 2]}\n"
    )
    (folder / "mymodels").mkdir()
    (folder / "mymodels" / "gpt.py").write_text("from torch.nn import Embedding as build\n")
    results = folder / "results" / "scaling-ladder"
    results.mkdir(parents=True)
    row = {"d_model": 8, "n_vocab": 16, "quantity": "parameters", "measured": 128, "agrees": True}
    pl.DataFrame([row]).write_parquet(results / "comparison.parquet")


def tensors() -> dict[str, np.ndarray]:
    """The tensors of that model, as its checkpoint names them."""
    square, up, vector = (32, 32), (48, 32), (32,)
    of_layer = {
        **dict.fromkeys((f"self_attn.{name}_proj" for name in "qkvo"), square),
        **dict.fromkeys(("mlp.up_proj", "mlp.gate_proj"), up),
        "mlp.down_proj": (32, 48),
        **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), vector),
    }
    shapes = {"model.embed_tokens": (100, 32), "lm_head": (100, 32), "model.norm": vector} | {
        f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in of_layer.items()
    }
    return {f"{name}.weight": np.zeros(shape, np.float16) for name, shape in shapes.items()}


def run_all(python: list[str], folder: Path, environment: dict[str, str]) -> list[list]:
    """Run every line in a folder with a Python, on a terminal of 80 columns without colours; return
    each with its exit code, what it wrote on stderr, and the output."""
    write_files(folder)
    lines = json.dumps({"commands": commands(), "programs": programs()})
    run = subprocess.run(
        [*python, str(RUNNER)], input=lines, cwd=folder, check=True, capture_output=True, text=True,
        timeout=TIMEOUT_S, env={**environment, "COLUMNS": "80", "NO_COLOR": "1"},
    )  # fmt: skip
    done = json.loads(run.stdout)
    assert len(done) == len(commands()) + sum(map(len, programs()))
    return done


def failures(done: list[list]) -> list[list]:
    """Those that neither work nor say, in one line, what to install."""
    return [line[:3] for line in done if not _is_right(*line[1:3])]


def _is_right(code: int, said: str) -> bool:
    return code == 0 or (code == 2 and "pip install" in said and len(said.splitlines()) == 1)
