"""Time from starting a command to its answer: ours, and `accelerate estimate-memory`.

    PYTHONPATH=. .bench-venv/bin/python benchmarks/start_up.py

Needs accelerate 1.15.0 (benchmarks/requirements.txt). Both read the same config.json of Llama 3 8B.
accelerate first asks the model hub whether the model exists: that request is replaced, so its time
is not counted. The commands run in turn, after one round that writes their bytecode: quote the
ratios.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROUNDS = 10
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256,
    "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05, "rope_theta": 500_000.0, "torch_dtype": "bfloat16",
}  # fmt: skip
WITHOUT_REQUEST = """
import sys, types
from accelerate.commands import estimate
estimate.verify_on_hub = lambda *_: types.SimpleNamespace(config={}, library_name="transformers")
sys.argv[0] = "accelerate-estimate-memory"
estimate.main()
"""


class Times(NamedTuple):
    """Seconds from the start of a process to its first output and to its end."""

    first: float
    end: float


def timed(command: list[str], settings: dict[str, str]) -> Times:
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=settings
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1), f"{command} printed nothing"
        first = time.perf_counter() - start
        process.stdout.read()
    assert process.returncode == 0, command
    return Times(first, time.perf_counter() - start)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(LLAMA))
        settings = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPYCACHEPREFIX": f"{folder}/code"}
        settings.pop("PYTHONDONTWRITEBYTECODE", None)
        ours = [sys.executable, "-m", "modelbudget"]
        commands = {
            "`modelbudget config.json`": [*ours, f"{folder}/config.json"],
            "`modelbudget llama-3-8b`": [*ours, "llama-3-8b"],
            f"`accelerate estimate-memory`, {version('accelerate')}": [
                sys.executable, "-c", WITHOUT_REQUEST, folder, "--library_name", "transformers",
            ],
        }  # fmt: skip
        for command in commands.values():
            timed(command, settings)
        rounds = [
            [timed(command, settings) for command in commands.values()] for _ in range(ROUNDS)
        ]
    print("| command | first output | end | × ours |\n| --- | --: | --: | --: |")
    for i, name in enumerate(commands):
        first = statistics.median(one[i].first for one in rounds)
        end = statistics.median(one[i].end for one in rounds)
        ratio = statistics.median(one[i].end / one[0].end for one in rounds)
        print(f"| {name} | {first:.2f} s | {end:.2f} s | {ratio:.2f} |")


if __name__ == "__main__":
    main()
