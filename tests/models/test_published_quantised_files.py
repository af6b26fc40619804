"""Quantised models: published files to the byte, and what transformers holds of small ones."""

import json
from pathlib import Path

import pytest

import modelbudget as mb
from modelbudget.architecture.terms import total
from modelbudget.families.decoder import Decoder

BYTES = {"I32": 4, "F32": 4, "F16": 2}
ORDER = {"F32": 3, "I32": 2, "F16": 1}
"""Of tensors in a file of safetensors 0.4: by dtype, then by name."""


def header_bytes(tensors: dict[str, tuple[str, list[int]]], metadata: dict) -> int:
    """Return the bytes of a safetensors header: the length, and JSON padded to 8 bytes."""
    entries: dict = {"__metadata__": metadata} if metadata else {}
    begin = 0
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda t: (-ORDER[t[1][0]], t[0])):
        end = begin + BYTES[dtype]
        for size in shape:
            end = begin + (end - begin) * size
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":"))
    return 8 + -(-len(text) // 8) * 8


def llama_tensors(a: Decoder, group: int, gptq: bool) -> dict[str, tuple[str, list[int]]]:
    """Return names, dtypes and shapes in files of AutoAWQ or AutoGPTQ, for a header."""
    d, ff, vocabulary = a.d_model, a.d_ff, [a.n_vocab, a.d_model]
    tensors: dict[str, tuple[str, list[int]]] = {
        "model.embed_tokens.weight": ("F16", vocabulary), "lm_head.weight": ("F16", vocabulary),
        "model.norm.weight": ("F16", [d]),
    }  # fmt: skip
    matrices = {f"self_attn.{name}_proj": (d, d) for name in "qkvo"}
    matrices |= {"mlp.gate_proj": (ff, d), "mlp.up_proj": (ff, d), "mlp.down_proj": (d, ff)}
    for i in range(a.n_layer):
        layer = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{norm}.weight"] = ("F16", [d])
        if gptq:
            tensors[f"{layer}.self_attn.rotary_emb.inv_freq"] = ("F32", [a.d_head // 2])
        for name, (rows, columns) in matrices.items():
            path, groups = f"{layer}.{name}", columns // group
            packed = [columns // 8, rows] if gptq else [columns, rows // 8]
            tensors[f"{path}.qweight"] = ("I32", packed)
            tensors[f"{path}.qzeros"] = ("I32", [groups, rows // 8])
            tensors[f"{path}.scales"] = ("F16", [groups, rows])
            if gptq:
                tensors[f"{path}.g_idx"] = ("I32", [columns])
                tensors[f"{path}.bias"] = ("F16", [rows])
    return tensors


LLAMA = {"gated": True, "norm": "rmsnorm", "position": "rotary", "tied": False, "n_ctx": 4096}
SIZES = {
    "7B": LLAMA | {"d_model": 4096, "n_layer": 32, "n_head": 32, "d_ff": 11008},
    "13B": LLAMA | {"d_model": 5120, "n_layer": 40, "n_head": 40, "d_ff": 13824},
    "33B": LLAMA | {"d_model": 6656, "n_layer": 60, "n_head": 52, "d_ff": 17920},
}
PUBLISHED = {
    # Sizes of model.safetensors on huggingface.co, by repository and commit.
    "TheBloke/Llama-2-7B-AWQ 755f5c3e": ("7B", 32000, "awq", 128, 3_889_391_512),
    "TheBloke/CodeLlama-7B-AWQ 1ed659d6": ("7B", 32016, "awq", 128, 3_889_653_656),
    "TheBloke/WizardCoder-Python-7B-V1.0-AWQ 1f97b1d9": ("7B", 32001, "awq", 128, 3_889_407_896),
    "TheBloke/Llama-2-7B-GPTQ 2ab277f0": ("7B", 32000, "autogptq-4bit", 128, 3_896_726_080),
    "TheBloke/Llama-2-7B-GPTQ e7f60136": ("7B", 32000, "autogptq-4bit", 64, 4_023_210_632),
    "TheBloke/MythoLogic-13B-GPTQ ce752b44": ("13B", 32000, "autogptq-4bit", 64, 7_507_257_432),
    "TheBloke/vicuna-33B-GPTQ d33ec533": ("33B", 32000, "autogptq-4bit", 64, 18_181_100_544),
}


def test_a_copy_has_the_bytes_of_its_file_by_its_name():
    """Only this asks whether a tool's defaults are those of files that people download."""
    name, (*_, group, published) = next(iter(PUBLISHED.items()))
    model = mb.model(name.split()[0])
    header = header_bytes(llama_tensors(model.architecture, group, False), {"format": "pt"})
    assert model.predict("parameter_bytes", {"dtype": "float16"}).total == published - header


@pytest.mark.parametrize(("size", "n_vocab", "weights", "group", "published"), PUBLISHED.values(),
                         ids=PUBLISHED)  # fmt: skip
def test_published_files_to_the_byte(size, n_vocab, weights, group, published):
    """No package packs these formats here: files are the only witness of their layout."""
    sizes = SIZES[size]
    d_head = sizes["d_model"] // sizes["n_head"]
    a = Decoder(n_vocab=n_vocab, d_head=d_head, n_kv_head=sizes["n_head"], **sizes)
    run = mb.RunConfig(weights=weights, weight_group=group, dtype="float16")
    gptq = weights != "awq"
    # AutoGPTQ's files have the frequencies of RoPE, and no metadata.
    header = header_bytes(llama_tensors(a, group, gptq), {} if gptq else {"format": "pt"})
    rope = 4 * a.n_layer * d_head // 2 if gptq else 0
    assert header + rope + total(a.file_bytes(a, run)) == published


PACKED = {
    "qwen3_next": [*3 * [(256, 128), (4, 4)], (128, 128)],
    "qwen3_5_text": [(128, 128)],
}
"""Rows of matrices that the class has as one, of 128 columns: queries, keys and values with gates,
β with decays, and queries of attention with gates."""


def scales_and_tables(numbers: int, is_double: bool) -> int:
    """Return the bytes of bitsandbytes' 4 bits that are not half a byte for each number."""
    scales = -(-numbers // 64)
    if not is_double:
        return 4 * scales + 4 * 16
    return scales + 4 * -(-scales // 256) + 4 * 16 + 4 * 256 + 4


def of_packed(config: dict) -> int:
    """Return the bytes by which matrices are more than those that a class packs of them."""
    given = config["quantization_config"]
    if not given.get("load_in_4bit"):
        return 0
    is_double = given["bnb_4bit_use_double_quant"]
    return sum(
        sum(scales_and_tables(128 * n, is_double) for n in rows)
        - scales_and_tables(128 * sum(rows), is_double)
        for rows in PACKED.get(config["model_type"], [])
    )


def of_single_row(config: dict) -> int:
    """Return the bytes of quanto's scales for each column of a matrix that has one row."""
    if config["quantization_config"].get("quant_method") != "quanto":
        return 0
    gates = config["num_hidden_layers"] if "shared_expert_intermediate_size" in config else 0
    return gates * 2 * 2 * (128 - 1)


OF_MLX = json.loads(Path("tests/golden/mlx_models.json").read_text())


@pytest.mark.parametrize(
    "recorded",
    OF_MLX,
    ids=lambda one: f"{one['config']['model_type']} {one['config']['quantization_config']}",
)
def test_bytes_that_mlx_holds(recorded, tmp_path):
    """MLX converts the table of tokens, too, and leaves rows that groups do not divide.

    Recorded by scripts/dev/record_mlx_models.py; such files were refused.
    """
    (tmp_path / "config.json").write_text(json.dumps(recorded["config"]))
    model = mb.model(tmp_path, implementation="modelbudget")
    assert model.predict("parameter_bytes", {}).total == recorded["bytes"]


RECORDED = json.loads(Path("tests/golden/quantised_models.json").read_text())


@pytest.mark.parametrize(
    "recorded",
    RECORDED,
    ids=lambda one: f"{one['config']['model_type']} {one['config']['quantization_config']}"[:60],
)
def test_bytes_that_transformers_holds(recorded, tmp_path):
    """Which modules a library converts: experts and Conv1D stay, MLA's projections do not.

    A gate of shared experts, and β and decay, were counted in the dtype in each format.
    Recorded by scripts/dev/record_quantised_models.py. GPT-2's queries, keys and values are one
    matrix there, with one table of bitsandbytes.
    """
    (tmp_path / "config.json").write_text(json.dumps(recorded["config"]))
    is_packed = recorded["config"]["model_type"] == "gpt2"
    settings = {
        "implementation": "modelbudget",
        "projections": "packed" if is_packed else "separate",
    }
    found = mb.model(tmp_path).predict("parameter_bytes", settings)
    # The bias that selects experts is a buffer of DeepSeek's class.
    of_buffer = 2 * 4 * 2 if recorded["config"]["model_type"] == "deepseek_v3" else 0
    other_layout = of_packed(recorded["config"]) - of_single_row(recorded["config"])
    assert found.total == recorded["bytes"] + of_buffer + other_layout
