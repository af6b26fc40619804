"""GGUF files: types and bytes as llama.cpp's quantiser gives them, names as in its package."""

import csv
import json
import random
from collections import Counter, defaultdict
from math import prod

import gguf
import pytest
from helpers.config_files import LLAMA
from helpers.gguf_files import KEYS_OF_FILE, shapes_of_file, written, written_as
from helpers.project import ROOT
from helpers.tiers import examples
from typer.testing import CliRunner

import modelbudget as mb
from modelbudget.api.command.app import app, main
from modelbudget.api.gguf import gguf_file
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.errors import InputError
from modelbudget.files.gguf_formats import Quantised, gguf_formats, types_of
from modelbudget.files.gguf_header import read_header
from modelbudget.files.gguf_tensors import architecture_of_class, quantised, tensors_of
from modelbudget.huggingface.offline import transformers
from modelbudget.modules.initialise import uninitialised
from modelbudget.predict.cache_bytes import terms_of_engine

GOLDEN = ROOT / "tests" / "golden"


def rows_of(name: str) -> dict[str, list[dict]]:
    by_model = defaultdict(list)
    with (GOLDEN / name).open() as file:
        for row in csv.DictReader(file):
            row["types"] = {k: int(v) for k, v in (one.split("=") for one in row["types"].split())}
            by_model[row["model"]].append(row)
    return by_model


def n_bytes(types: dict[str, str], shapes: dict[str, tuple]) -> int:
    return sum(gguf_formats().types[one].n_bytes(shapes[name]) for name, one in types.items())


DRY_RUNS = rows_of("gguf_dry_runs.csv")


@pytest.mark.parametrize("name", DRY_RUNS)
def test_every_tensor_of_published_models_has_the_type_that_llama_cpp_gives_it(name):
    model = mb.model(name)
    kind = architecture_of_class(model.base.transformers)
    shapes = {n: t.shape for n, t in tensors_of(model.architecture, kind).items()}
    for row in DRY_RUNS[name]:
        sizes = quantised(model.architecture, kind, row["imatrix"] == "1")
        types = types_of(row["format"], shapes, sizes)
        assert Counter(types.values()) == row["types"], row
        assert f"{n_bytes(types, shapes) / 2**20:.2f}" == row["mebibytes"], row


TINY = {
    "llama-gqa4": ("llama", 16, 256, 256, 300, 8, 2, 32, 0, False, False),
    "llama-mha": ("llama", 9, 256, 256, 257, 4, 4, 64, 0, False, False),
    "llama-tied": ("llama", 8, 256, 512, 260, 4, 2, 64, 0, True, False),
    "llama-odd": ("llama", 8, 288, 480, 260, 6, 2, 48, 0, False, False),
    "llama-odd16": ("llama", 5, 272, 528, 260, 4, 2, 68, 0, False, False),
    "mixtral-8": ("llama", 8, 256, 256, 260, 4, 2, 64, 8, False, False),
    "qwen2-bias": ("qwen2", 12, 256, 256, 260, 4, 2, 64, 0, True, True),
    "qwen3moe-4": ("qwen3moe", 8, 256, 256, 260, 4, 1, 64, 4, False, False),
    "llama-70b-like": ("llama", 80, 256, 256, 260, 8, 1, 32, 0, False, False),
}
"""Architecture, layers, width, width of an MLP or an expert, tokens, heads, key heads, width of a
head, experts, whether tied, whether with biases: of the models whose files were recorded."""


def shapes_by_hand(name: str) -> dict[str, tuple]:
    kind, n_layer, d, d_ff, n_vocab, n_head, n_kv_head, d_head, n_expert, tied, bias = TINY[name]
    shapes: dict[str, tuple] = {"token_embd.weight": (n_vocab, d), "output_norm.weight": (d,)}
    shapes |= {} if tied else {"output.weight": (n_vocab, d)}
    query, key = (n_head * d_head, d), (n_kv_head * d_head, d)
    experts = (n_expert,) if n_expert else ()
    ending = "_exps" if n_expert else ""
    for i in range(n_layer):
        layer = {
            "attn_norm.weight": (d,), "ffn_norm.weight": (d,), "attn_q.weight": query,
            "attn_k.weight": key, "attn_v.weight": key, "attn_output.weight": (d, query[0]),
            f"ffn_gate{ending}.weight": (*experts, d_ff, d),
            f"ffn_up{ending}.weight": (*experts, d_ff, d),
            f"ffn_down{ending}.weight": (*experts, d, d_ff),
        }  # fmt: skip
        if n_expert:
            layer["ffn_gate_inp.weight"] = (n_expert, d)
        if kind == "qwen3moe":
            layer |= {"attn_q_norm.weight": (d_head,), "attn_k_norm.weight": (d_head,)}
        if bias:
            layer |= {"attn_q.bias": query[:1], "attn_k.bias": key[:1], "attn_v.bias": key[:1]}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


@pytest.mark.parametrize("name", TINY)
def test_files_differ_by_the_bytes_of_their_tensors(name):
    """Two files of a model have the same metadata but for its numbers, and so the same header."""
    kind, n_layer, _, _, _, n_head, n_kv_head, _, n_expert, *_ = TINY[name]
    shapes, headers = shapes_by_hand(name), defaultdict(set)
    for row in rows_of("gguf_files.csv")[name]:
        has_matrix = row["imatrix"] == "1"
        sizes = Quantised(kind, n_layer, n_head, n_kv_head, n_expert, has_matrix)
        types = types_of(row["format"], shapes, sizes)
        assert Counter(types.values()) == row["types"], row
        padded = sum(
            -(-gguf_formats().types[one].n_bytes(shapes[tensor]) // 32) * 32
            for tensor, one in types.items()
        )
        headers[has_matrix].add(int(row["bytes"]) - padded)
    assert all(len(sizes) == 1 for sizes in headers.values()), headers


def test_formats_without_a_matrix_are_those_that_were_written_so(monkeypatch, capsys):
    """Of the files that were recorded, each format in both ways where llama.cpp writes it so."""
    rows = [row for of_model in rows_of("gguf_files.csv").values() for row in of_model]
    without = {row["format"] for row in rows if row["imatrix"] == "0"}
    assert {*gguf_formats().with_imatrix} == {row["format"] for row in rows} - without
    words = ["modelbudget", "qwen-3-8b", "--file", "gguf", "--format", "IQ2_XXS"]
    for more, is_said in (([], True), (["--imatrix"], False)):
        monkeypatch.setattr("sys.argv", words + more)
        with pytest.raises(SystemExit):
            main()
        assert ("with an importance matrix alone" in capsys.readouterr().err) == is_said


def test_blocks_are_those_of_the_package():
    for name, one in gguf_formats().types.items():
        known = gguf.GGMLQuantizationType[name]
        assert (one.id, one.numbers, one.bytes) == (known, *gguf.GGML_QUANT_SIZES[known])


SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "num_key_value_heads": 2, "vocab_size": 300,
}  # fmt: skip
OF_SHARED = {
    "n_routed_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
OF_LATENTS = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 12,
}  # fmt: skip
MLA = SIZES | OF_SHARED | OF_LATENTS
HYBRID = {
    "head_dim": 32, "num_hidden_layers": 4, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
}  # fmt: skip
KEYS = {
    "GPT2LMHeadModel": {
        "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 512,
    },
    "GPTNeoXForCausalLM": {k: v for k, v in SIZES.items() if k != "num_key_value_heads"},
    "MixtralForCausalLM": SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3MoeForCausalLM": SIZES | {"num_experts": 4, "moe_intermediate_size": 32,
                                    "num_experts_per_tok": 2},
    "Gemma4ForCausalLM": SIZES | {
        "num_global_key_value_heads": 1, "attention_k_eq_v": True, "head_dim": 16,
        "global_head_dim": 32, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    "Qwen3NextForCausalLM": SIZES | HYBRID | {
        "num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 40},
    "Qwen3_5ForCausalLM": SIZES | HYBRID,
    "Qwen3_5MoeForCausalLM": {k: v for k, v in SIZES.items() if k != "intermediate_size"}
    | HYBRID | {
        "num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 40},
    "Phi3ForCausalLM": SIZES | {"pad_token_id": 0},
    "GptOssForCausalLM": SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "MiniMaxM2ForCausalLM": SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2,
                                     "head_dim": 16},
    "DeepseekV3ForCausalLM": MLA | {"q_lora_rank": 24},
    "Glm4MoeLiteForCausalLM": MLA | {"q_lora_rank": 24},
    "DeepseekV2ForCausalLM": MLA | {"q_lora_rank": None, "n_shared_experts": 2},
    "Llama4ForCausalLM": SIZES | {
        "intermediate_size": 32, "intermediate_size_mlp": 96, "num_local_experts": 4,
        "interleave_moe_layer_step": 2, "head_dim": 16},
    "Qwen2MoeForCausalLM": SIZES | {
        "num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 40,
        "num_experts_per_tok": 2},
    "Dots1ForCausalLM": SIZES | OF_SHARED,
    "Glm4MoeForCausalLM": SIZES | OF_SHARED | {"use_qk_norm": True, "head_dim": 16},
    "HunYuanMoEV1ForCausalLM": SIZES | {"num_experts": 4, "moe_topk": 2, "head_dim": 16},
    "OlmoeForCausalLM": SIZES | {"num_experts": 4, "num_experts_per_tok": 2},
    "GraniteMoeHybridForCausalLM": SIZES | {
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 16,
        "mamba_d_state": 16, "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 40},
    "NemotronHForCausalLM": SIZES | {
        "num_hidden_layers": 3, "hybrid_override_pattern": "M*-", "mamba_num_heads": 8,
        "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "head_dim": 16},
    "Lfm2MoeForCausalLM": SIZES | {
        "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
        "num_dense_layers": 2, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32},
    "SmolLM3ForCausalLM": SIZES | {"pad_token_id": 0},
    "KimiLinearForCausalLM": SIZES | OF_LATENTS | {
        "num_hidden_layers": 4, "linear_num_heads": 4, "linear_head_dim": 16, "pad_token_id": 0,
        "num_experts": 4, "num_experts_per_token": 2, "num_shared_experts": 1,
        "moe_intermediate_size": 32,
        "layer_types": [*3 * ["linear_attention"], "full_attention"]},
}  # fmt: skip
CLASSES = [
    (name, kind, {}) for name, one in gguf_formats().architectures.items() for kind in one.classes
]
CHANGED = [
    ("starcoder2", "Starcoder2ForCausalLM", {"use_bias": False}),
    ("gptneox", "GPTNeoXForCausalLM", {"attention_bias": False}),
    ("granite", "GraniteForCausalLM", {"mlp_bias": True, "attention_bias": True}),
    ("llama", "LlamaForCausalLM", {"mlp_bias": True, "head_dim": 8}),
    ("gpt2", "GPT2LMHeadModel", {"n_inner": 96}),
    ("granite", "GraniteForCausalLM", {"head_dim": 8}),
    ("starcoder2", "Starcoder2ForCausalLM", {"head_dim": 32}),
    ("gemma4", "Gemma4ForCausalLM", {"hidden_size_per_layer_input": 8,
                                     "vocab_size_per_layer_input": 300}),
    ("gemma4", "Gemma4ForCausalLM", {"enable_moe_block": True, "num_experts": 4,
                                     "top_k_experts": 2, "moe_intermediate_size": 32}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("architecture", "kind", "changed"), [*CLASSES, *CHANGED])
def test_names_and_shapes_are_those_of_the_class_under_the_names_of_the_package(
    architecture, kind, changed, tmp_path
):
    """The package has the names of llama.cpp for the names of the class's parameters.

    A file of these tensors is read as a model with them: files of Mixtral had experts of another
    width, those of Pythia no biases.
    """
    import torch

    keys, of_class = KEYS.get(kind, SIZES) | changed, getattr(transformers, kind)
    config = of_class.config_class(**keys)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architectures": [kind], "model_type": config.model_type} | keys))
    with torch.device("meta"), uninitialised():
        module = of_class(config)
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, 4)
    theirs = {}
    endings = "correction_bias", "expert_bias"
    selections = [(n, b) for n, b in module.named_buffers() if n.endswith(endings)]
    for name, parameter in (*module.named_parameters(), *selections):
        shape = tuple(parameter.shape)
        if kind == "GPT2LMHeadModel" and ".c_" in name:  # Conv1D, turned when it is converted
            shape = shape[::-1]
        if ".experts." in name:  # two in one, and without `.weight`
            layer = int(name.split(".")[2])
            ending = "bias" if name.endswith("_bias") else "weight"
            is_turned = kind in ("GptOssForCausalLM", "Llama4ForCausalLM")
            if is_turned and ending == "weight":  # when it is converted
                shape = (shape[0], *shape[:0:-1])
            n_expert, rows, *row = shape
            parts = ("gate", "up") if "gate_up" in name else ("down",)
            parts = ("gate_up",) if "gate_up" in name and kind == "Gemma4ForCausalLM" else parts
            for part in parts:
                stem = f"blk.{layer}.ffn_{part}_exps.{ending}"
                theirs[stem] = (n_expert, rows // len(parts), *row)
            continue
        if "in_proj_qkvz" in name:  # divided
            values = keys["linear_num_value_heads"] * keys["linear_value_head_dim"]
            layer = f"blk.{name.split('.')[2]}."
            theirs[f"{layer}attn_gate.weight"] = (values, shape[1])
            theirs[f"{layer}attn_qkv.weight"] = (shape[0] - values, shape[1])
            continue
        if "conv" in name and len(shape) == 3:  # squeezed
            shape = shape[::2]
        if kind == "KimiLinearForCausalLM":  # as in its files, with a convolution of each
            name, shape = name.replace("forget_gate.", ""), tuple(n for n in shape if n > 1)
            if "conv1d" in name:
                of_each = dict.fromkeys("qkv", (shape[0] // 3, shape[1]))
                layer = f"blk.{name.split('.')[2]}."
                theirs |= {f"{layer}ssm_conv1d_{i}.weight": size for i, size in of_each.items()}
                continue
        if "shared_mlp.input_linear" in name:  # divided
            for part in ("gate", "up"):
                theirs[f"blk.{name.split('.')[2]}.ffn_{part}_shexp.weight"] = (40, shape[1])
            continue
        if kind == "NemotronHForCausalLM":  # as in its files
            name = name.replace("model.", "backbone.")
        name = name.replace("moe.router.weight", "moe.router.layer.weight")
        if name.endswith(("router.scale", "per_expert_scale")):  # Gemma4Model.modify_tensors
            stem = "ffn_down_exps" if "expert" in name else "ffn_gate_inp"
            theirs[f"blk.{name.split('.')[2]}.{stem}.scale"] = shape
            continue
        name = name.replace(".dt_bias", ".dt_proj.bias")
        of_file = names.get_name(name, try_suffixes=(".weight", ".bias", "_bias")) or name
        of_file += ".weight" * of_file.endswith("attn_sinks")
        if "attn_kv_b" in of_file:  # keys turned, for a head that reads the latent
            n_head, latent, d_key = keys["num_attention_heads"], shape[1], keys["qk_nope_head_dim"]
            theirs[of_file.replace("kv_b", "k_b")] = (n_head, latent, d_key)
            theirs[of_file.replace("kv_b", "v_b")] = (n_head, keys["v_head_dim"], latent)
            continue
        is_selection = "exp_probs_b" in of_file
        theirs[f"{of_file.partition('_b')[0]}_b.bias" if is_selection else of_file] = shape
    named = tensors_of(mb.model(path).architecture, architecture)
    assert {name: tensor.shape for name, tensor in named.items()} == theirs
    if not gguf_formats().architectures[architecture].is_read:
        return
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": keys.get("n_inner", 4 * 64)} | keys
    model = mb.model(written_as(architecture, tmp_path / "small.gguf", sizes, theirs, {}))
    assert model.checkpoint().differences == ()
    assert model.parameters().total == sum(map(prod, theirs.values()))


def test_gpt_oss_has_the_bytes_of_the_published_file():
    """bartowski/openai_gpt-oss-20b-GGUF: 12.1 GB; other formats keep its experts in MXFP4.

    ggml-org/gpt-oss-20b-GGUF: 12,109,566,560 bytes, 13 MB of them for the tokenizer. By hand:
    17 bytes for 32 numbers of experts, 34 of other matrices, 4 a number of all else.
    """
    file = gguf_file(mb.model("gpt-oss-20b"), "MXFP4_MOE")
    d, d_query, d_key, n_layer, n_expert = 2880, 4096, 512, 24, 32
    experts = n_layer * n_expert * 3 * d * d * 17 // 32
    matrices = 2 * 201_088 * d + n_layer * 2 * d * (d_query + d_key)
    floats = n_layer * (n_expert * (4 * d + 1) + 3 * d + d_query + 2 * d_key + 64) + d
    assert file.tensor_bytes == experts + matrices * 34 // 32 + 4 * floats
    assert 12_109_566_560 - file.tensor_bytes - file.header_bytes < 13 * 10**6
    with pytest.raises(InputError, match="`gguf=Q4_K_M`: not known of gpt-oss; allowed: MXFP4_MOE"):
        gguf_file(mb.model("gpt-oss-20b"), "Q4_K_M")


@pytest.mark.parametrize(
    ("name", "format_name", "imatrix", "types", "size"),
    [
        # anomalyco/opencode issue 15059: a file of llama-quantize with an importance matrix
        ("qwen3.5-35b-a3b-text", "IQ4_XS", True, "F32=301 IQ4_XS=391 Q5_K=40 Q6_K=1", None),
        # ikawrakow/ik_llama.cpp issue 1167, and ggml-org/llama.cpp issue 19613 (844 tensors)
        ("zai-org/GLM-4.7-Flash", "BF16", False, "BF16=563 F32=281", 55.79),
        # llama-bench, as public tables have it
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "Q4_K_M", False, None, 6.07),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "Q6_K", False, None, 8.50),
        ("granite-4.0-h-tiny", "Q4_K_M", False, None, 3.94),
        ("granite-4.0-h-tiny", "IQ4_XS", True, None, 3.49),
        # a log of llama-bench, build 9638: other files of it keep more in Q8_0
        ("nemotron-3-nano-30b-a3b", "Q4_K_M", False, None, 22.82),
        # ggml-org's file, less tables of RoPE and scales of layers; keys of all layers were refused
        ("google/gemma-4-E4B-it", "Q4_K_M", False, None, 5_319_465_128 - 4 * (256 + 42)),
        ("google/gemma-4-E2B-it", "Q4_K_M", False, None, 3.18),
        ("google/gemma-4-E2B-it", "Q8_0", False, None, 4.61),
        # llama-bench, as public tables have it; 25,233,142,046 parameters, with these tables
        ("gemma-4-26b", "Q4_K_M", False, None, 15.63),
        ("gemma-4-26b", "Q8_0", False, None, 25.00),
        # ggml-org/llama.cpp pull request 17592, and a log of llama-bench
        ("kimi-linear-48b-a3b", "Q2_K", False, None, 16.78),
        ("kimi-linear-48b-a3b", "MXFP4_MOE", False, None, 25.33),
    ],
)
def test_files_have_the_tensors_that_llama_cpp_printed(name, format_name, imatrix, types, size):
    file = gguf_file(mb.model(name), format_name, imatrix)
    counts = Counter(tensor.dtype for tensor in file.tensors)
    assert types in (None, " ".join(f"{word}={counts[word]}" for word in sorted(counts)))
    of_tensors = sum(tensor.n_bytes for tensor in file.tensors)
    assert size in (None, of_tensors, round(of_tensors / 2**30, 2))


@pytest.mark.parametrize(
    ("name", "n_bytes", "most"),
    [
        ("lfm2-8b-a1b", 5_044_779_712, 2.4e6),  # LiquidAI's file; 65,536 tokens
        ("ibm-granite/granite-4.0-350m", 236_985_760, 3.6e6),  # ibm-granite's; 100,352 tokens
    ],
)
def test_files_are_those_of_hybrids_but_for_metadata(name, n_bytes, most):
    """Files in Q4_K_M, by the bytes that public scripts and lists have."""
    file = gguf_file(mb.model(name), "Q4_K_M")
    assert 2.3e6 < n_bytes - file.tensor_bytes - file.header_bytes < most


QUANTISED = {"token_embd.weight": "Q8_0", "blk.0.ffn_up.weight": "Q4_0", "output.weight": "F16"}


@pytest.mark.parametrize("tied", [True, False])
def test_a_file_is_a_model_with_the_parameters_of_its_config(tied, tmp_path):
    keys = KEYS_OF_FILE | {"tie_word_embeddings": tied}
    path = written(tmp_path / "small.gguf", keys, QUANTISED)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA | keys | {"max_position_embeddings": 512}))
    model, same = mb.model(path), mb.model(config)
    assert model.label == "Small Llama"
    assert model.architecture == same.architecture
    assert model.base.transformers == "LlamaForCausalLM"
    stored = model.checkpoint()
    assert stored.agrees
    assert stored.left_out == 1  # the table of RoPE
    assert stored.dtypes["Q4_0"] == 1
    assert stored.n_bytes == sum(one.n_bytes for one in gguf.GGUFReader(path).tensors)
    header = read_header(path)
    theirs = {one.name: int(one.n_bytes) for one in gguf.GGUFReader(path).tensors}
    assert {one.name: one.n_bytes for one in header.tensors} == theirs
    assert header.data_start == gguf.GGUFReader(path).data_offset


def test_a_layer_for_further_tokens_is_neither_counted_nor_loaded(tmp_path):
    """Converters of llama.cpp write it after the others (_Qwen35MtpMixin in conversion/qwen.py)."""
    further = {f"blk.3.{part}.weight": (64, 64) for part in ("attn_q", "nextn.eh_proj")}
    keys = KEYS_OF_FILE | {"num_nextn_predict_layers": 1}
    path = written(tmp_path / "further.gguf", keys, {}, further)
    same = written(tmp_path / "same.gguf", KEYS_OF_FILE, {})
    stored = mb.model(path).checkpoint()
    assert (stored.differences, stored.left_out) == ((), 3)
    served = [mb.model(one).serve("rtx-4090", {"length": 64}) for one in (path, same)]
    assert served[0].of_device.terms[0] == served[1].of_device.terms[0]


@pytest.mark.parametrize("kind", ["DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM"])
def test_old_files_of_deepseek_have_keys_and_values_in_one_matrix(kind, tmp_path):
    """They were refused; llama.cpp caches keys and values of all heads of them.

    `is_mla` in its src/models/deepseek2.cpp; issue 7118: of 163,840 tokens of DeepSeek V2 it asks
    for 805,306,368,032 bytes, 32 of them for the buffer.
    """
    path, keys = tmp_path / "config.json", KEYS[kind]
    model_type = getattr(transformers, kind).config_class.model_type
    path.write_text(json.dumps({"architectures": [kind], "model_type": model_type} | keys))
    named = tensors_of(mb.model(path).architecture, "deepseek2", ["blk.0.attn_kv_b.weight",
                       "blk.1.attn_kv_b.weight"])  # fmt: skip
    shapes = {name: tensor.shape for name, tensor in named.items()}
    assert shapes["blk.1.attn_kv_b.weight"] == (4 * (8 + 12), 16)
    model = mb.model(written_as("deepseek2", tmp_path / "old.gguf", keys, shapes, {}))
    assert model.checkpoint().differences == ()
    served = model.serve("l4", {"length": 300}).of_device
    assert served.request_bytes == 2 * 512 * 4 * (8 + 4 + 12) * 2
    for name, length, n_bytes in (
        ("deepseek-v2", 163_840, 805_306_368_000),
        ("deepseek-v2-lite", 16_384, 4320 * 2**20),  # a log of 2026 of DeepSeek Coder V2 16B
    ):
        run = RunConfig(length=length, dtype="float16", cache_layout="cells", mla_cache="heads")
        terms = terms_of_engine(mb.model(name).architecture, run)
        assert sum(term.total for term in terms.values()) == n_bytes


def test_what_a_file_has_in_addition_or_lacks_is_a_difference(tmp_path):
    changed = {"blk.1.ffn_up.weight": (95, 64), "blk.2.attn_k.weight": None, "extra.weight": (32,)}
    path = written(tmp_path / "small.gguf", KEYS_OF_FILE, {}, changed)
    differences = {one.name: one.difference for one in mb.model(path).checkpoint().differences}
    assert differences == {
        "layer.mlp.up": -64, "layer.attention.key": -32 * 64, "extra.weight": 32,
    }  # fmt: skip


def test_heads_that_a_class_cannot_have_are_named(tmp_path):
    """Heads of GPT-2 have the width of the states, whatever the file's metadata."""
    path = written_as("gpt2", tmp_path / "gpt2.gguf", KEYS_OF_FILE | {"head_dim": 32}, {}, {})
    assert refusal(path) == [
        f"{path}: gpt2.attention.key_length = 32: GPT2LMHeadModel has 64 channels of 4 heads"
    ]


def test_the_command_shows_files_and_writes_none(tmp_path, monkeypatch, capsys):
    runner = CliRunner()
    monkeypatch.setattr("sys.argv", ["modelbudget", "--version"])
    with pytest.raises(SystemExit):
        main()  # registers the subcommands
    capsys.readouterr()
    answer = runner.invoke(app, ["llama-3-8b", "--file", "gguf", "--format", "q4_k_m", "--json"])
    assert answer.exit_code == 0
    parsed = json.loads(answer.stdout)
    assert parsed["tensor_bytes"] == 4_912_898_048
    assert sum(one["bytes"] for one in parsed["tensors"]) == 4_912_898_048
    assert sum(prod(one["shape"]) for one in parsed["tensors"]) == 8_030_261_248
    for words, text in (
        (["llama-3-8b", "--file", "gguf"], "--file gguf: no --format; allowed: F32, "),
        (["llama-3-8b", "--file", "gguf", "--format", "Q4"], "unknown; did you mean Q4_0?"),
        (["llama-3-8b", "--file", "gguf", "--format", "q4km"], "did you mean Q4_K_M? (allowed"),
        (["llama-3-8b", "--file", "gguf", "--format", "float16"], "did you mean F16? (allowed"),
        (["llama-3-8b", "--format", "Q4_0"], "allowed: with --file gguf"),
        (["palm-540b", "--file", "gguf", "--format", "Q4_0"], "no names of llama.cpp are known"),
        ([str(tmp_path / "none.gguf")], "no such file"),
    ):
        wrong = runner.invoke(app, words)
        assert isinstance(wrong.exception, InputError), words
        assert text in str(wrong.exception), words


def test_an_architecture_whose_files_are_not_read_is_named(tmp_path):
    path = written_as("llama4", tmp_path / "a.gguf", SIZES, shapes_of_file(tied=False), {})
    with pytest.raises(InputError, match=r"'llama4': such files are not read here") as refused:
        mb.model(path)
    assert len(refused.value.mistakes) == 1


def test_a_broken_file_is_refused_in_one_line(tmp_path):
    """Mutated and cut headers: never another error, and nothing beyond the file is read."""
    whole = written(tmp_path / "whole.gguf", KEYS_OF_FILE, QUANTISED).read_bytes()
    draw, path, n_refused = random.Random(0), tmp_path / "broken.gguf", 0
    header = read_header(tmp_path / "whole.gguf").data_start
    for _ in range(examples(1000)):
        content = bytearray(whole)
        for _ in range(draw.choice((1, 1, 4))):
            content[draw.randrange(header)] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
        if draw.random() < 0.3:
            del content[draw.randrange(len(content)) :]
        path.write_bytes(content)
        lines = refusal(path)
        n_refused += bool(lines)
        assert all(str(path) in line for line in lines), lines
    assert n_refused > 100


def refusal(path) -> list[str]:
    try:
        mb.model(path).checkpoint()
    except InputError as error:
        return list(error.mistakes)
    return []
