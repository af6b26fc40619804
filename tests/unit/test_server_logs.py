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
