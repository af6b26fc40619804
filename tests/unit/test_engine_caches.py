"""Caches as engines allocate them, against what the engines allocate, plan or print."""

import csv
import json

import pytest
from helpers.project import ROOT

import modelbudget as mb
from modelbudget.architecture.run_config import CACHE_DTYPES, OF_CACHES, RunConfig
from modelbudget.common.errors import InputError
from modelbudget.predict.cache_bytes import layer_caches
from modelbudget.serving.cache_formats import cache_formats, vector_bytes
from modelbudget.serving.cache_layouts import cache_terms, pages_of
from modelbudget.serving.layers_by_cache import LayerCache

GOLDEN = ROOT / "tests" / "golden"


def rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def total(of: list[LayerCache], run: RunConfig) -> int:
    return sum(term.total for term in cache_terms(of, run).values())


def caches_named(name: str, run: RunConfig) -> list[LayerCache]:
    return layer_caches(*mb.model(name).with_run(run))


def layers(n_layer: int, heads: int, width: int) -> LayerCache:
    """Layers that keep a key and a value of each head and token."""
    return LayerCache("layer.attention", n_layer, ((2 * heads, width, False),))


PAGED = {"dtype": "bfloat16", "cache_layout": "paged"}
PLANNED = {
    "llama-3.1-8b": ("llama-3.1-8b", {}),
    "llama-3.1-8b tp2": ([layers(32, 4, 128)], {}),
    "llama-3.1-8b fp8 cache": ("llama-3.1-8b", {"cache_dtype": "fp8"}),
    "llama-2-7b": ("llama-2-7b", {}),
    "qwen2.5-0.5b": ("qwen-2.5-0.5b", {}),
    "mistral-7b-v0.1 (all windows)": ("mistral-7b-v0.1", {}),
    "gemma-3-27b (52 windows of 1024 and 10 full)": ("gemma-3-27b", {}),
    "gpt-oss-20b (12 + 12)": ("gpt-oss-20b", {}),
    "llama-4-scout (36 in chunks of 8192 and 12 full)": ("llama-4-scout", {}),
    "deepseek-v3 mla": ("deepseek-v3", {"cache_block": 64}),
    "deepseek-v3 mla fp8": ("deepseek-v3", {"cache_block": 64, "cache_dtype": "fp8"}),
    "two widths of full attention": ([layers(4, 8, 128), layers(4, 4, 128)], {}),
    "nemotron-like (6 attention and 24 mamba-2)": (
        [layers(6, 8, 128), LayerCache("state", 24, state=2 * (8192 * 3 + 64 * 64 * 128))],
        {"cache_block": 528, "cached_states": 1},
    ),
}
"""Models by their names in the recording: of the catalogue, or the layers that were given there."""


@pytest.mark.parametrize("name", PLANNED)
def test_pages_are_those_that_vllm_plans(name):
    """vLLM's own functions planned 104 caches: bytes of a block, blocks, tokens and concurrency.

    Only this sees a wrong rule for groups of layers, for a window's blocks, or for pages of states.
    """
    model, settings = PLANNED[name]
    run = RunConfig(**PAGED | settings)
    pages = pages_of(caches_named(model, run) if isinstance(model, str) else model, run)
    recorded = [row for row in rows("vllm_blocks.csv") if row["model"] == name]
    assert len(recorded) == 8
    for row in recorded:
        length, memory = int(row["max_model_len"]), int(row["memory"])
        blocks, each = memory // pages.block_bytes, pages.blocks_of(length)
        assert len(pages.groups) == int(row["groups"])
        assert pages.block_bytes == int(row["bytes_per_block"])
        assert (blocks, int(blocks / each * length)) == (int(row["blocks"]), int(row["tokens"]))
        assert f"{blocks / each:.4f}" == row["concurrency"]


SHAPES = {
    "mistral-small-24b": [layers(40, 8, 128)],
    "mistral-small-22b": [layers(56, 8, 128)],
    "qwen-3.6-27b": [layers(16, 4, 256)],
    "minimax-m2": [layers(62, 8, 128)],
    "hf-mem gpt-oss-20b": [layers(24, 8, 64)],
    "keys of qwen-3-235b-a22b": [LayerCache("keys", 94, ((1, 128, False),))],
}
"""Models that are not in the catalogue, or not in these layers, by their published sizes."""
UNITS = {"B": 1, "MiB": 2**20, "GiB": 2**30}
LAYOUT = {
    "llama.cpp": {"cache_layout": "cells", "batched_tokens": 512, "attention_kernel": "flash"}
}


@pytest.mark.parametrize(
    "row", rows("engine_caches.csv"), ids=lambda row: f"{row['model']} {row['printed']}"
)
def test_caches_are_what_engines_print(row):
    """Equal in every digit that was printed, 0.5 of the last one for rounding or cutting it."""
    settings = LAYOUT.get(row["engine"], {}) | {
        "dtype": row["cache_dtype"] if row["cache_dtype"].endswith("float16") else "bfloat16",
        "cache_dtype": row["cache_dtype"],
        "length": int(row["length"]),
        "batch": int(row["requests"]),
    }
    run = RunConfig(**settings)
    of = SHAPES.get(f"{row['engine']} {row['model']}") or SHAPES.get(row["model"])
    named = row["model"].removeprefix("states of ")
    of = of or [cache for cache in caches_named(named, run) if cache.state or named == row["model"]]
    digits = len(row["printed"].partition(".")[2])
    error = abs(total(of, run) / UNITS[row["unit"]] - float(row["printed"]))
    assert error < 10**-digits * (0 if row["unit"] == "B" else 0.51) + 1e-9, error


@pytest.mark.parametrize(
    "row", rows("quantised_caches.csv"), ids=lambda row: "-".join(row.values())
)
def test_quantised_caches_of_transformers(row):
    """Prompts are quantised at once, and all again when the residual part is full (8 tokens)."""
    words = row["cache"].split()
    unquantised = int(row["new"]) % 8
    run = RunConfig(dtype="bfloat16", batch=2, length=int(row["prompt"]) + int(row["new"]),
                    cache_dtype=f"int{words[2]}-group", cache_unquantised=unquantised)  # fmt: skip
    assert total([layers(6, 2, 64)], run) == int(row["storage_bytes"])


def test_another_format_leaves_states_where_they_are():
    """By component against our module: convolution and state of a layer, next to stored keys."""
    run = {"batch": 2, "length": 9, "cache_dtype": "fp8"}
    hybrid = mb.model("qwen3-next-80b-a3b", n_layer=4)
    assert hybrid.measure(run, ["cache_bytes"]).agrees


def test_a_state_of_kimi_linear_in_two_engines():
    """Two comments of llama-hparams.cpp: 3 convolutions of 4,096 channels, 524,288 numbers."""
    shape = {"n_layer": 4, "mixers": "kimi_delta kimi_delta kimi_delta attention"}
    sizes = {"n_linear_head": 32, "n_linear_key_head": 32, "d_linear_convolution": 4}
    channels = {"d_linear_key": 128, "d_linear_value": 128}
    a = mb.model("gpt-2-124m").architecture.model_copy(update=shape | sizes | channels)
    for layout, of_convolution in ("cells", 4), ("paged", 2):  # vLLM: kda_state_dtype
        run = RunConfig(cache_layout=layout, dtype="bfloat16", length=256)
        (state,) = (cache for cache in layer_caches(a, run) if cache.state)
        assert (state.n_layer, state.state) == (3, of_convolution * 3 * 3 * 4096 + 4 * 524_288)


@pytest.mark.parametrize(
    ("n_head", "settings", "tokens", "padding"),
    [(48, {"drafted_tokens": 15}, 480, "1.27%"),
     (32, {"cached_state_dtype": "float32"}, 528, "0.76%")],
)  # fmt: skip
def test_pages_of_states_are_as_long_as_vllm_prints(n_head, settings, tokens, padding):
    """Qwen3.8 27B (syv-ai/qwen38-27b-rtx3090, issue 102), Qwen3.5 9B (vllm, pull request 37467).

    Only this sees that a convolution has one token fewer than it spans, and drafted ones, and a
    recurrence in the dtype, where our module has float32. A request has a state for each draft.
    """
    settings = settings | {"cached_states": 1}
    shape = {"n_layer": 4, "n_kv_head": 4, "d_head": 256, "n_linear_head": n_head,
             "mixers": "gated_deltanet gated_deltanet gated_deltanet attention"}  # fmt: skip
    a = mb.model("qwen3-next-80b-a3b").architecture.model_copy(update=shape)
    of_tokens, of_states = layer_caches(a, run := RunConfig(**PAGED | settings))
    pages = pages_of([of_tokens, of_states], run)
    assert pages.block_tokens == tokens
    assert f"{tokens * of_tokens.token_bytes(run) / of_states.state - 1:.2%}" == padding
    assert pages.blocks_of(tokens) == 1 + 3 * (1 + run.drafted_tokens)


def test_pages_of_latents_next_to_states_are_of_128_tokens():
    """Kimi Linear, by hand: a state of 2,170,880 bytes and 1,152 of a token's latent: 15 × 128."""
    caches_of_kimi = [
        LayerCache("layer.mla", 7, ((1, 512, False), (1, 64, True))),
        LayerCache("layer.kimi_delta", 20, state=2 * 3 * 3 * 4096 + 4 * 32 * 128 * 128),
    ]
    assert pages_of(caches_of_kimi, RunConfig(**PAGED)).block_tokens == 1920


@pytest.mark.parametrize("keys", [{"mamba_ssm_cache_dtype": "float32"}, {}])
def test_a_config_says_in_what_vllm_keeps_states(tmp_path, keys):
    """Nemotron-H, by hand: three rows of 10,240 channels, 128 heads of 64 by 128 in float32; also
    only here: layers with neither attention nor a state, and vLLM's default without the key
    (models/config.py, NemotronHForCausalLMConfig), which is said where an engine is asked about.
    """
    config = {"model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"],
              "num_hidden_layers": 4, **keys,
              "layers_block_type": ["mamba", "mlp", "attention", "mamba"]}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = mb.model(tmp_path)
    a, run = model.with_run(PAGED)
    for layout, is_said in ("contiguous", False), ("paged", True):
        found = model.predictions(["parameter_bytes"], {"cache_layout": layout})
        assert is_said == any("cached_state_dtype" in line for line in found.notes_of_file)
    of_tokens, of_states = layer_caches(a, run)
    assert of_tokens.token_bytes(run) == 2 * 2 * 8 * 128
    assert (of_states.n_layer, of_states.state) == (2, 2 * 3 * 10_240 + 4 * 128 * 64 * 128)
    assert pages_of([of_tokens, of_states], run).block_tokens == 1040


@pytest.mark.parametrize(
    ("model", "settings", "tokens"),
    [("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"cache_dtype": "fp8"}, 4176),
     ("Qwen/Qwen3.5-0.8B", {}, 544), ("Qwen/Qwen3.5-27B", {}, 784)],
)  # fmt: skip
def test_named_models_keep_states_as_their_classes_do(model, settings, tokens):
    """Printed by vLLM as attention block size, in public logs; a request has one more state of each
    recurrence with prefix caching. Catches names without the float32 states of their config.json.
    """
    run = mb.model(model).with_run(PAGED | settings)[1]
    pages = pages_of(caches_named(model, run), run)
    n_groups = len(pages.groups) - 1
    assert pages.block_tokens == tokens
    assert pages.blocks_of(tokens) == 1 + 2 * n_groups
    alone = run.model_copy(update={"cached_states": 1})
    assert pages_of(caches_named(model, alone), alone).blocks_of(tokens) == 1 + n_groups


@pytest.mark.parametrize(
    ("model", "settings", "n_bytes"),
    [("mamba-2-2.7b", {}, 64 * 2 * (3 * (5120 + 2 * 128) + 80 * 64 * 128)),
     ("mamba-2-2.7b", {"cached_state_dtype": "float32"}, 64 * (2 * 3 * 5376 + 4 * 80 * 64 * 128)),
     ("falcon-mamba-7b", {}, 64 * 2 * (3 * 8192 + 16 * 8192)),
     ("zamba2-2.7b", {}, 9 * 48 * 2 * 2 * 32 * 160)],
)  # fmt: skip
def test_blocks_of_state_space_models_by_hand(model, settings, n_bytes):
    """By the calculators of vLLM's mamba_utils.py (02d7108) and the published sizes."""
    run = RunConfig(**PAGED | settings)
    assert pages_of(caches_named(model, run), run).block_bytes == n_bytes


def test_vllms_latent_format_has_656_bytes_a_token():
    run = RunConfig(dtype="bfloat16", cache_dtype="fp8-latent", length=1)
    assert total(caches_named("deepseek-v3", run), run) == 61 * 656


@pytest.mark.parametrize(("cache_dtype", "of_latents"), [("dtype", 1152), ("fp8-latent", 656)])
def test_keys_of_an_indexer_are_in_fp8_next_to_latents(cache_dtype, of_latents):
    """vLLM's models/deepseek_v2.py: 128 channels of 8 bits and a float32 scale, for any latents.

    SGLang has the same: of GLM-5 in FP8 a public log prints 7.51 GB for 131,072 tokens.
    """
    settings = {"cache_block": 64, "cache_dtype": cache_dtype}
    run = RunConfig(**PAGED | settings)
    pages = pages_of(caches_named("deepseek-ai/DeepSeek-V3.2", run), run)
    assert pages.block_bytes == 64 * 61 * (of_latents + 128 + 4)
    of_glm = sum(c.n_layer * c.token_bytes(run) for c in caches_named("zai-org/GLM-5", run))
    assert of_glm == 78 * (of_latents + 132)
    if cache_dtype == "fp8-latent":
        assert f"{(131_072 + 64) * of_glm / 2**30:.2f}" == "7.51"
    served = mb.model("deepseek-ai/DeepSeek-V3.2").serve("h200", settings | {"length": 8192}, 8)
    assert served.requests > 0


def test_every_word_is_in_the_file():
    assert {*CACHE_DTYPES} - {"dtype", "unknown"} == cache_formats().formats.keys()
    assert {*OF_CACHES["names"].values()} <= cache_formats().formats.keys()


@pytest.mark.parametrize(
    ("name", "n_bytes"),
    [("fp8_e4m3", 128), ("int8_per_token_head", 132), ("fp8_per_token_head", 132),
     ("int4_per_token_head", 68), ("nvfp4", 72), ("fp4_e2m1", 72), ("bf16", 256)],
)  # fmt: skip
def test_formats_have_the_names_of_engines_by_hand(name, n_bytes):
    """Only here: they were refused, and read as fp8 in logs. A head of 128 channels."""
    run = RunConfig(dtype="float32", cache_dtype=name)
    assert vector_bytes(run.cache_dtype, run.dtype, 128) == n_bytes


def test_a_request_is_one_sequence_of_the_batch():
    model, run = mb.model("qwen-3-8b"), {"dtype": "bfloat16", "batch": 3, "length": 1000}
    one = 36 * 2 * 8 * 128 * 2
    found = model.predictions(["cache_bytes", "request_bytes"], run).totals()
    assert found == {"cache_bytes": 3000 * one, "request_bytes": 1000 * one}
    of_pages = model.predict("request_bytes", run | {"cache_layout": "paged"}).total
    assert of_pages == 63 * 16 * one


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("gpt-2-124m", {"cache_dtype": "q9"}, "cache_dtype = 'q9'"),
        (
            "phi-2-2.7b",
            {"cache_dtype": "int4-group"},
            "blocks of 64 do not divide a head of 80 channels",
        ),
        ("zamba2-1.2b", {"cache_layout": "cells"}, "has no model with zamba2"),
        ("rwkv-7-0.1b", {"cache_layout": "paged"}, "vLLM .* has no model with rwkv7"),
        ("gpt-2-124m", {"cache_dtype": "fp8", "cache_layout": "static"}, "have the dtype"),
    ],
)
def test_what_is_not_known_is_refused(model, settings, message):
    with pytest.raises(InputError, match=message):
        mb.model(model).predict("cache_bytes", settings)


@pytest.mark.parametrize("model", ["rwkv-7-0.1b", "mamba-130m"])
def test_states_have_no_other_format(model):
    """Only this sees two kinds of states in one model, of which one replaced the other."""
    one = mb.model(model)
    in_dtype, in_fp8 = (
        one.predict("cache_bytes", {"batch": 3, "cache_dtype": word}).total
        for word in ("dtype", "fp8")
    )
    assert in_fp8 == in_dtype


def test_the_peak_with_another_format_is_refused():
    why = mb.model("gpt-2-124m").why_not("peak_inference_bytes", {"cache_dtype": "fp8"})
    assert why
    assert "kernels that read this cache are not" in why


def test_llama_cpp_keeps_keys_of_an_indexer_next_to_latents():
    """MiB of a public log of GLM-5.2, of whose 78 layers 21 have an indexer; GLM-5 has 78.

    Only here: DeepSeek V3.2 and GLM-5 were refused, as if no formula had their cache.
    """
    settings = {"cache_layout": "cells", "dtype": "float16", "length": 768_000}
    served = mb.model("zai-org/GLM-5").serve("h200", settings).of_device
    assert served.request_bytes / 2**20 == 65_812.5 + 3_937.5 * 78 / 21


def test_llama_cpp_pads_values_without_flash_attention():
    """To the widest of all layers (`n_embd_v_gqa_max` in llama-kv-cache.cpp), in float16.

    Of Gemma 4 31B 50 layers with a window have 16 heads of 256 channels, 10 have 4 of 512; of
    Gemma 3 all have as many.
    """
    for name, padding in (("gemma-4-31b", 10 * (16 * 256 - 4 * 512)), ("gemma-3-27b", 0)):
        settings = {"cache_layout": "cells", "length": 4096}
        of_flash, of_math = (
            mb.model(name).serve("h200", settings | {"attention_kernel": kernel}).of_device
            for kernel in ("flash", "math")
        )
        assert of_math.request_bytes - of_flash.request_bytes == 2 * 4096 * padding
