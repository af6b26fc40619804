"""Readings of whole server logs that others published, each with its settings, explained."""

import csv

import pytest
from helpers.project import ROOT

from modelbudget.api.explain import explain

LINES = {
    "vLLM": {
        "model": "Initializing a V1 LLM engine with config: model='{model}', dtype=torch.bfloat16, "
        "max_seq_len={length}, tensor_parallel_size={devices}, kv_cache_dtype={cache_dtype}",
        "weights": "Model loading took {weights} GiB memory and 9.1 seconds",
        "room": "Available KV cache memory: {room} GiB",
        "blocks": "# GPU blocks: {blocks}, # CPU blocks: 2048",
        "tokens": "GPU KV cache size: {tokens} tokens",
        "concurrency": "Maximum concurrency for {length} tokens per request: {concurrency}x",
    },
    "SGLang": {
        "model": "server_args=ServerArgs(model_path='{model}', tp_size={devices})",
        "weights": "Load weight end. type=A, avail mem=1.0 GB, mem usage={weights} GB.",
        "keys": "KV Cache is allocated. dtype: torch.{cache_dtype}, #tokens: {tokens}, "
        "K size: {keys} GB, V size: {keys} GB",
        "latents": "KV Cache is allocated. dtype: torch.{cache_dtype}, #tokens: {tokens}, "
        "KV size: {latents} GB",
    },
}
"""Lines of engines by the column of the recording that they need."""


def rows() -> list[dict[str, str]]:
    path = ROOT / "tests" / "golden" / "server_logs.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['engine']} {row['model']}")
def test_numbers_of_server_logs_are_explained(tmp_path, row):
    lines = [line.format(**row) for name, line in LINES[row["engine"]].items() if row[name]]
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines))
    settings = dict(pair.split("=") for pair in row["settings"].split())
    found = explain(path, None, {k: int(v) if v.isdecimal() else v for k, v in settings.items()})
    assert "; ".join(line.in_words for line in found.lines) == row["verdicts"]


@pytest.mark.parametrize(
    ("model", "length", "request_gib", "room", "longest", "verdicts"),
    [
        # vLLM 0.26 on an L40S, a public note: blocks of 784 tokens and three states
        ("Qwen/Qwen3.6-27B", 131072, "8.18", "7.04", 112896, "exact; read; exact"),
        # vllm-project/vllm issue 34076
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 262144, "24.0", "3.18", 34736, "exact; read; exact"),
    ],
)
def test_a_length_for_which_a_server_does_not_start_is_explained(
    tmp_path, model, length, request_gib, room, longest, verdicts
):
    path = tmp_path / "server.log"
    path.write_text(
        f"Initializing a V1 LLM engine with config: model='{model}', dtype=torch.bfloat16\n"
        f"ValueError: To serve at least one request with the model's max seq len ({length}), "
        f"{request_gib} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({room} GiB). Based on the available memory, the estimated maximum model length is "
        f"{longest}."
    )
    assert "; ".join(line.verdict for line in explain(path).lines) == verdicts
