"""What an engine serves: terms against arithmetic that is written out, and against vLLM's logs."""

import csv
import json
import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.config_files import LLAMA
from helpers.gguf_files import KEYS_OF_FILE, written, written_as

import modelbudget as mb
from modelbudget.api.command.app import main
from modelbudget.api.command.serve_table import of_serving
from modelbudget.api.find import CATALOGUE
from modelbudget.api.gguf import gguf_file
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import all_models
from modelbudget.common.errors import InputError
from modelbudget.files.gguf_tensors import layer_of
from modelbudget.predict.engine_weights import rank_of
from modelbudget.predict.layer_split import layer_shares
from modelbudget.predict.prediction_or_reason import predicted
from modelbudget.predict.serve import (
    NOT_KNOWN,
    caches_on_device,
    forward_bytes,
    pass_of,
    sort_bytes,
)
from modelbudget.serving.cache_layouts import cache_terms

LLAMA_70B = {"weights": "fp8-channel", "length": 8192, "sampled_requests": 1}
H100 = int(79.11 * 2**30)
COMPUTE_BUFFERS = Path(__file__).parents[1] / "golden" / "compute_buffers.csv"


def terms(found) -> dict[str, int]:
    return {term.name: term.n_bytes for term in found.of_device.terms}


def test_llama_70b_on_two_devices_by_hand():
    """The issue's example, from sizes alone: 80 layers, d 8192, ff 28672, 64 and 8 heads of 128.

    Each device has half of every matrix; row-parallel ones keep a bfloat16 scale of every row.
    """
    found = mb.model("llama-3.1-70b").serve("h100-80gb", LLAMA_70B, devices=2)
    q, kv, ff, d, rows = 4096, 512, 14336, 8192, 64128
    matrices = d * q + 2 * d * kv + q * d + 3 * d * ff
    scales = 2 * (q + 2 * kv + d + 2 * ff + d)
    weights = 80 * (matrices + scales + 2 * 2 * d) + 2 * (2 * rows * d + d)
    assert terms(found)["weights"] == weights
    one = found.of_device
    assert one.block_bytes == 80 * 2 * 4 * 128 * 16 * 2
    assert one.usable == -(-92 * H100 // 100)
    left = one.usable - sum(terms(found).values())
    assert one.blocks == left // one.block_bytes - 1
    assert found.requests == one.blocks // 512 == 28
    assert repr(found).endswith(" on 2 × H100: 28 requests of 8,192 tokens>")
    assert found.most_requests == 29
    fp8 = mb.model("llama-3.1-70b").serve(
        "h100-80gb", LLAMA_70B | {"cache_dtype": "fp8"}, devices=2
    )
    assert (fp8.requests, fp8.most_requests) == (57, 58)
    small = mb.model("llama-3.1-70b").serve("80GB", LLAMA_70B, devices=2)
    assert small.requests == 25


def test_a_source_and_a_target_have_blocks_of_their_own_by_hand():
    """T5 11B: 24 and 24 layers, d 1024, ff 65536, 128 heads of 128, of which a device has half.

    vLLM's CrossAttentionSpec has blocks for the tokens of a source, next to those of a target, in
    one pool; of one request both are rounded up to 16 tokens.
    """
    settings = {"length": 500, "target_length": 70}
    found = mb.model("t5-11b").serve("rtx-4090", settings, devices=2)
    attention, mlp, d = 4 * 1024 * 64 * 128, 2 * 1024 * 32768, 1024
    encoder = 24 * (attention + mlp + 2 * d) + d + 32 * 64
    decoder = 24 * (2 * attention + mlp + 3 * d) + d + 32 * 64
    assert terms(found)["weights"] == 2 * (encoder + decoder + 32128 // 2 * d)
    one = found.of_device
    assert one.block_bytes == 24 * 2 * 64 * 128 * 16 * 2
    assert one.request_blocks == 32 + 5
    assert one.request_bytes == 37 * one.block_bytes
    assert found.requests == one.blocks // 37
    longest = one.largest_length  # whose pass has one source of all tokens, not five
    blocks = mb.model("t5-11b").serve("rtx-4090", settings | {"length": longest}, devices=2)
    assert blocks.of_device.blocks - 16 < 5 + longest // 16 <= blocks.of_device.blocks
    as_long = mb.model("t5-11b").serve("rtx-4090", {"length": 500}, devices=2)
    assert as_long.of_device.request_blocks == 2 * 32
    static = mb.model("t5-11b").serve("rtx-4090", settings | {"cache_layout": "static"}, devices=2)
    assert static.of_device.request_bytes == 24 * (2 * 64 * 128 * 2 * (500 + 70) + 2 * 8)


def test_a_pass_of_longer_sources_takes_no_less():
    """Of 2,048 tokens a pass had two sources of 2,047, 226 MB, and one of 2,048, 224 MB."""
    run = mb.model("t5-small").run({"dtype": "bfloat16", "batched_tokens": 2048})
    a = mb.model("t5-small").architecture
    lengths = (512, 1000, 1024, 1025, 1500, 2047, 2048, 4096)
    passes = [forward_bytes(a, run.model_copy(update={"length": n})) for n in lengths]
    assert passes == sorted(passes)
    assert passes[-3] < passes[-2] == passes[-1]


def test_groups_of_a_row_are_divided_where_its_columns_are():
    """AWQ of Llama 3 8B on four devices, by hand: 4 bits, and a scale and zero of 128 columns.

    Catches tables that are whole on each device, as the scales of rows above are.
    """
    found = mb.model("llama-3-8b").serve("h100-80gb", {"weights": "awq"}, devices=4)
    by_rows = [(1024, 4096), (256, 4096), (256, 4096), (3584, 4096), (3584, 4096)]
    by_columns = [(4096, 1024), (4096, 3584)]
    matrices = sum(r * c // 2 + c // 128 * (2 * r + r // 2) for r, c in by_rows + by_columns)
    rows = 128_256 // 4
    assert terms(found)["weights"] == 32 * (matrices + 2 * 2 * 4096) + 2 * (2 * rows + 1) * 4096


@pytest.mark.parametrize(
    ("name", "device", "gguf"),
    [
        ("qwen-3-8b", "h100", None),
        ("qwen-3-8b", "h100", "Q4_K_M"),
        ("google/byt5-xl", "l40s", None),
    ],
)
def test_the_largest_length_fits_and_the_next_does_not(name, device, gguf):
    """Of a file and of T5 it did not fit: compute buffer and pass were of the length asked for."""
    model, settings = mb.model(name), {"batch": 7, "length": 1000}
    length = model.serve(device, settings, gguf=gguf).of_device.largest_length
    assert model.serve(device, settings | {"length": length}, gguf=gguf).requests == 7
    assert model.serve(device, settings | {"length": length + 1}, gguf=gguf).requests == 6


def test_the_last_token_of_a_shared_prefix_is_computed_again():
    """`get_computed_blocks` of vLLM's kv_cache_manager.py: requests of 1,008 tokens took no block,
    so that there was room for any number.
    """
    settings = {"length": 1008, "shared_prefix": 2000}
    serving = mb.model("qwen-2.5-1.5b").serve("l4", settings)
    device = serving.of_device
    assert device.shared_bytes == 62 * device.block_bytes
    assert device.requests == device.blocks - 62
    assert [row[3] for row in of_serving(serving).rows if row[0] == "shared prefix"] == [
        "1,007 tokens"  # it was the 2,000 that were asked for
    ]


def test_experts_are_divided_in_one_of_two_ways():
    """With expert_parallel whole experts are; the router and attention are the same in both."""
    model = mb.model("qwen-3-30b-a3b")
    in_parts = model.serve("h100", {"tensor_parallel": 4}, devices=4)
    whole = model.serve("h100", {"tensor_parallel": 4, "expert_parallel": 4}, devices=4)
    assert terms(in_parts)["weights"] == terms(whole)["weights"]
    routed = 48 * 128 * 3 * 2048 * 768 * 2
    alone = terms(model.serve("h200"))["weights"]
    attention = 48 * 2 * 2048 * 128 * (2 * 32 + 2 * 4)
    vocabulary = 2 * 2 * 151_936 * 2048
    divided = routed + attention + vocabulary
    assert terms(whole)["weights"] == alone - divided * 3 // 4


def test_a_vocabulary_is_padded_on_one_device_by_hand():
    """GPT-2: 50,257 rows of 768 are 50,304 (vLLM's VocabParallelEmbedding); llama.cpp has none."""
    model = mb.model("gpt2")
    n_bytes = 2 * model.parameters().total
    assert terms(model.serve("h100"))["weights"] == n_bytes + 47 * 768 * 2
    assert terms(model.serve("h100", {"cache_layout": "cells"}))["weights"] == n_bytes


@pytest.mark.parametrize("expert_parallel", [1, 4])
def test_replicas_of_data_parallel_share_experts_by_hand(expert_parallel):
    """Qwen 3 30B-A3B: each device has all of attention, and a fourth of experts (vLLM's wide EP).

    48 layers, d 2048, 128 experts of 768 channels; the router is whole.
    """
    model, settings = mb.model("qwen-3-30b-a3b"), {"batched_tokens": 8192}
    alone = model.serve("h200", settings)
    shared = settings | {"data_parallel": 4, "expert_parallel": expert_parallel}
    four = model.serve("h200", shared, devices=4)
    routed = 48 * 128 * 3 * 2048 * 768 * 2
    assert terms(alone)["weights"] - terms(four)["weights"] == routed * 3 // 4
    assert terms(four)["tokens of 4 replicas"] == 2 * 4 * 8192 * 2048 * 2
    assert four.of_device.block_bytes == alone.of_device.block_bytes
    assert (four.run.tensor_parallel, four.replicas) == (1, 4)
    assert four.requests == 4 * four.of_device.requests


@pytest.mark.parametrize(
    ("length", "shared"),
    [(2048, 62), (4096 + 499, 62 - 500 // 16), (8000, 0)],
)
def test_blocks_of_a_prefix_are_shared_while_a_window_has_them(length, shared):
    """Mistral 7B v0.1, a window of 4,096 in all layers: a prefix of 1,000 tokens was never shared.

    vLLM's `remove_skipped_blocks` frees whole blocks before token length - 4096 + 1.
    """
    settings = {"length": length, "shared_prefix": 1000}
    device = mb.model("mistral-7b-v0.1").serve("l4", settings).of_device
    assert device.shared_bytes == shared * device.block_bytes
    assert device.requests == (device.blocks - shared) // (device.request_blocks - shared)


def test_settings_that_no_engine_reads_have_no_effect_and_a_line():
    """They had neither; an activation function written out changed the bound."""
    model, paged = mb.model("gemma-3-1b"), {"length": 128, "sampled_requests": 1}
    training = {"optimizer": "adamw-8bit", "recompute": "full", "activation_kernel": "written_out"}
    plain = model.serve("l4", paged)
    served = model.serve("l4", paged | training | {"attention_kernel": "math"})
    assert terms(served) == terms(plain)
    names = "activation_kernel, attention_kernel, optimizer, recompute"
    assert {*served.notes} - {*plain.notes} == {f"without effect in serving: {names}"}
    of_llama = model.serve("l4", paged | {"weights": "awq", "cached_states": 1}, gguf="Q8_0")
    assert "without effect in serving: cached_states, weights" in of_llama.notes
    with pytest.raises(InputError, match="optimizer = 'adam-9bit': unknown"):
        model.serve("l4", {"optimizer": "adam-9bit"})


def test_replicas_of_dense_models_share_nothing():
    model = mb.model("llama-3-8b")
    replicas = model.serve("h100", {"data_parallel": 2}, devices=4)
    assert terms(replicas) == terms(model.serve("h100", {"tensor_parallel": 2}, devices=4))
    assert (replicas.run.tensor_parallel, replicas.replicas) == (2, 2)


def test_shared_experts_are_whole_where_tokens_are_divided():
    """DeepSeek V2 Lite, tensor 2 × data 2 with whole experts: `use_sequence_parallel_moe`.

    26 layers with a shared expert, of 2 · 1408 channels, d 2048.
    """
    model = mb.model("deepseek-v2-lite")
    settings = {"tensor_parallel": 2, "data_parallel": 2}
    in_parts = model.serve("h100", settings, devices=4)
    whole = model.serve("h100", settings | {"expert_parallel": 4}, devices=4)
    half_of_shared = 26 * 3 * 2048 * 1408 * 2
    assert terms(whole)["weights"] - terms(in_parts)["weights"] == half_of_shared


def test_devices_divide_a_context_by_hand():
    """DeepSeek V3 on 16 devices: each has a 16th of the tokens of MLA's only head.

    61 layers with 512 + 64 numbers of a token (vLLM's --decode-context-parallel-size).
    """
    model, settings = mb.model("deepseek-v3"), {"length": 5000}
    whole = model.serve("h200", settings, devices=16).of_device
    divided = model.serve("h200", settings | {"context_parallel": 16}, devices=16).of_device
    assert divided.block_bytes == whole.block_bytes == 61 * 576 * 16 * 2
    assert divided.block_tokens == 16 * 16
    assert divided.request_blocks == -(-5000 // 256)
    assert divided.blocks == whole.blocks
    assert divided.largest_length == 16 * whole.largest_length


def test_norms_over_all_heads_are_whole_or_divided_by_hand():
    """OLMo 2 7B: 32 layers, d 4096, ff 11008, 32 heads of 128, of which a device has half.

    vLLM's olmo2.py has whole norms and gathers both, its minimax_m2.py half of each norm.
    """
    found = mb.model("olmo-2-7b").serve("h100", {"batched_tokens": 1000}, devices=2)
    matrices = 4 * 4096 * 2048 + 3 * 4096 * 5504
    weights = 32 * (matrices + 2 * 4096 + 2 * 2048) + 2 * 100_352 // 2 * 4096 + 4096
    assert terms(found)["weights"] == 2 * weights
    (norms,) = (term for term in found.of_device.terms if term.name == "norms over all heads")
    assert norms.n_bytes == 2 * (32 * 2 * 2048 + 2 * 1000 * 2 * 4096)
    assert norms.least == 0
    assert "norms over all heads" not in terms(mb.model("olmo-2-7b").serve("h100"))
    minimax = mb.model("minimax-m2").serve("h200", {"length": 4096}, devices=4)
    assert minimax.requests > 0


@pytest.mark.parametrize(("weights", "scale"), [("bnb-4bit", 4), ("bnb-4bit-double", 1)])
def test_bitsandbytes_has_experts_in_4_bits_in_vllm_by_hand(weights, scale):
    """Qwen3 30B-A3B: 128 experts of 48 layers, three matrices of 2,048 × 768 numbers in half a byte
    with a float32 scale for 64; a pass has those of one layer in bfloat16. They were in the dtype.
    """
    settings = {"length": 2048, "weights": weights}
    served = mb.model("qwen-3-30b-a3b").serve("l40s", settings).of_device
    numbers = 128 * 3 * 2048 * 768
    experts = 48 * (numbers // 2 + numbers // 64 * 4 + 128 * 3 * 16 * 4)
    attention = 48 * 2 * 2048 * 128 * (32 + 4)
    others = attention // 2 + attention // 64 * scale + 2 * (2 * 151_936 * 2048 + 48 * 128 * 2048)
    assert experts + others < served.terms[0].n_bytes < 1.0002 * (experts + others)
    (forward,) = (term for term in served.terms if term.name.startswith("forward"))
    assert forward.least is not None
    assert 2 * numbers < forward.least <= forward.n_bytes < 1.3 * 2 * numbers


def test_a_latent_is_on_each_device():
    model = mb.model("deepseek-v3")
    found = model.serve("h200", {"cache_block": 64, "length": 4096}, devices=16)
    assert found.of_device.block_bytes == 61 * 576 * 2 * 64


@pytest.mark.parametrize(
    ("settings", "copied"),
    [({}, 1), ({"kept_in_dtype": "mla.kv_up"}, 0), ({"weights": "dtype"}, 0)],
)
def test_quantised_matrices_of_latents_are_copied_in_the_dtype_by_hand(settings, copied):
    """DeepSeek V3: 61 layers, of which a device has 16 heads of 128 + 128, from a latent of 512."""
    chosen = {"weights": "fp8-block", "length": 4096} | settings
    found = mb.model("deepseek-v3").serve("h200", chosen, devices=8)
    assert terms(found).get("copies of kv_up", 0) == copied * 61 * 16 * 256 * 512 * 2


def test_a_gguf_file_is_served_by_its_own_bytes(tmp_path):
    """As llama.cpp places it: tokens are looked up on the host, and so are the first layers."""
    path = written(tmp_path / "a.gguf", KEYS_OF_FILE, {"output.weight": "Q8_0"})
    settings = {"length": 300, "batched_tokens": 512, "host_layers": 1}
    found = mb.model(path).serve("1GB", settings, reserve=0)
    of_layer = 4 * (64 + 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64)
    others = 4 * (64 + 8) + 300 * 64 // 32 * 34  # final norm, RoPE's table, head
    assert terms(found)["weights"] == 2 * of_layer + others
    assert terms(found)["a matrix of the host"] == 4 * 96 * 64  # a pass copies it to the device
    assert found.of_device.request_bytes == 512 * 2 * 2 * 32 * 2


def test_experts_of_first_layers_stay_on_the_host():
    """`--n-cpu-moe`: llama.cpp's common/common.h (LLM_FFN_EXPS_REGEX), pull request 15077.

    By hand of gpt-oss 20B: 17 bytes for 32 numbers, a bias in float32; caches stay on the device.
    """
    model, settings = mb.model("gpt-oss-20b"), {"length": 4096}
    found = [model.serve("rtx-3060", settings | {"host_expert_layers": n}, gguf="MXFP4_MOE")
             for n in (0, 6)]  # fmt: skip
    of_layer = 32 * 3 * 2880 * (2880 * 17 // 32 + 4)
    assert terms(found[0])["weights"] - terms(found[1])["weights"] == 6 * of_layer
    assert terms(found[1])["a matrix of the host"] == 32 * 2880 * 2880 * 17 // 32
    assert found[0].of_device.request_bytes == found[1].of_device.request_bytes
    for name, n, gguf, why in (("gpt-oss-20b", 6, None, "known of a .gguf file alone"),
                               ("gpt-oss-20b", 25, "MXFP4_MOE", "allowed: at most 24"),
                               ("qwen-3-0.6b", 6, "Q8_0", "the file has no experts")):  # fmt: skip
        with pytest.raises(InputError, match=f"host_expert_layers = {n}: {why}"):
            mb.model(name).serve("rtx-3060", {"host_expert_layers": n}, gguf=gguf)


def test_tensors_with_a_pattern_in_their_name_stay_on_the_host():
    """`--override-tensor PATTERN=CPU` by hand: layers 2 to 23 of gpt-oss 20B, and its head.

    Patterns are searched in names (`ml.tensor_buft_overrides` in llama.cpp's llama-model.cpp); the
    first may be those of `--n-cpu-moe`.
    """
    model, settings = mb.model("gpt-oss-20b"), {"length": 4096}
    both = r"blk\.([2-9]|1.|2.)\.ffn_(gate|down)_exps|^output\.weight"
    patterns = ["", r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", both]
    found = [model.serve("rtx-3060", settings | {"host_tensors": pattern}, gguf="MXFP4_MOE")
             for pattern in patterns]  # fmt: skip
    experts = model.serve("rtx-3060", settings | {"host_expert_layers": 24}, gguf="MXFP4_MOE")
    assert terms(found[1]) == terms(experts)
    of_layer = 32 * 2 * 2880 * (2880 * 17 // 32 + 4)
    head = 201_088 * 2880 * 34 // 32
    assert terms(found[0])["weights"] - terms(found[2])["weights"] == 22 * of_layer + head
    assert terms(found[2])["a matrix of the host"] == head
    for pattern, why in (
        ("blk.99", "is in no name, such as "),
        ("blk.(1", "no pattern: missing"),
        (r"(\w+.?)+!", "may take hours"),
        (".*.*.*.*!", "may take hours"),
        ("(a|aa)" * 8, "may take hours"),
        ("a?" * 15, "may take hours"),
    ):
        quoted = re.escape(pattern if "no name" in why else repr(pattern))
        with pytest.raises(InputError, match=f"host_tensors = {quoted}: {why}"):
            model.serve("rtx-3060", {"host_tensors": pattern}, gguf="MXFP4_MOE")
    with pytest.raises(InputError, match=r"host_tensors = exps: known of a \.gguf file alone"):
        model.serve("rtx-3060", {"host_tensors": "exps"})


def test_llama_cpp_divides_the_layers_of_a_file_among_devices():
    """DeepSeek R1 Distill Qwen 32B in Q4_K_M on four devices, buffers of a public log; and a model
    of 61 layers on two, of which the one with the head has fewer.
    """
    model, printed = mb.model("qwen-2.5-32b"), [4844.72, 4366.53, 4366.53, 4930.57]
    of_layers = dict.fromkeys(range(64), 0)
    rows = gguf_file(model, "Q4_K_M").rows()
    for row in rows:
        if (i := layer_of(row["tensor"])) is not None:
            of_layers[i] += row["bytes"]
    head = sum(row["bytes"] for row in rows if row["tensor"].startswith("output"))
    shares = layer_shares(64, 4)
    n_bytes = [sum(map(of_layers.get, of.layers)) + head * of.has_head for of in shares]
    assert [round(n / 2**20, 2) for n in n_bytes] == printed
    found = model.serve("rtx-3090", {"length": 8192}, devices=4, gguf="Q4_K_M")
    alone = model.serve("rtx-3090", {"length": 8192}, gguf="Q4_K_M")
    assert terms(found)["weights"] == n_bytes[0]
    assert found.of_device.request_bytes * 64 == alone.of_device.request_bytes * 17
    assert (found.replicas, alone.fits, found.fits) == (1, True, True)
    assert [len(of.layers) for of in layer_shares(61, 2)] == [31, 30]
    assert [len(of.layers) for of in layer_shares(61, 2, 31)] == [16, 14]


def test_what_llama_cpp_does_not_divide_is_refused():
    for name, settings, devices, why in (
        ("gemma-4-e2b-text", {}, 2, "known of decoders alone; allowed: 1"),
        ("llama-3.2-1b", {}, 32, "32 devices of 16 layers: allowed: at most 16"),
        ("llama-3.2-1b", {"draft": "eagle3"}, 2, "of a file on one device; allowed: none"),
    ):
        with pytest.raises(InputError, match=why):
            mb.model(name).serve("rtx-3090", devices=devices, gguf="Q4_K_M", **settings)


def test_what_reads_images_takes_the_bytes_of_its_file(tmp_path):
    """llama.cpp's `--mmproj`, whose tensors are all on the device (`use_gpu` of its clip.cpp)."""
    shapes = {"v.blk.0.attn_q.weight": (64, 32), "mm.0.bias": (10,)}
    keys = KEYS_OF_FILE | {"tie_word_embeddings": True}
    clip = written_as(
        "clip", tmp_path / "mmproj.gguf", keys, shapes, {"v.blk.0.attn_q.weight": "F16"}
    )
    model = mb.model("gemma-3-4b")
    without, with_file = (
        model.serve("rtx-3060", gguf="Q4_K_M", mmproj=path) for path in (None, clip)
    )
    assert {*terms(with_file).items()} - {*terms(without).items()} == {
        ("what reads images", 2 * 64 * 32 + 4 * 10)
    }
    wrong = written(tmp_path / "llama.gguf", keys, {})
    for gguf, path, why in (("Q4_K_M", wrong, "'llama': reads no images; allowed: clip"),
                            (None, clip, "of llama.cpp; allowed: with a .gguf")):  # fmt: skip
        with pytest.raises(InputError, match=why):
            model.serve("rtx-3060", gguf=gguf, mmproj=path)


@pytest.mark.parametrize(
    ("name", "n_ubatch", "printed"),
    [("qwen-3-30b-a3b", 512, 304.75), ("llama-3.1-8b", 512, 258.50), ("llama-2-7b", 512, 70.50),
     ("llama-3.2-3b", 128, 64.12), ("qwen-2.5-0.5b", 512, 300.25), ("qwen-3-1.7b", 512, 304.75)],
)  # fmt: skip
def test_compute_buffers_are_within_what_llama_cpp_prints(name, n_ubatch, printed):
    """Lines "compute buffer size" of public logs, of Metal and CPU, contexts up to 4,096 tokens:
    one of both ends, whichever tensors its allocator could reuse.
    """
    a = mb.model(name).architecture
    flash = {"backend": "gpu", "dtype": "bfloat16", "attention_kernel": "flash"}
    logits = {"batched_tokens": n_ubatch, "sampled_requests": n_ubatch}  # of builds of that time
    run = RunConfig(cache_layout="cells", length=4096, **logits, **flash)
    term = pass_of(a, run)
    assert term.least is not None
    assert printed in [pytest.approx(n / 2**20, abs=0.006) for n in (term.least, term.n_bytes)]


def test_experts_next_to_an_mlp_need_room():
    """They were left out (llama.cpp, src/models/gemma4.cpp; build_moe_ffn in llama-graph.cpp)."""
    a = mb.model("gemma-4-26b").architecture
    flash = {"backend": "gpu", "dtype": "bfloat16", "attention_kernel": "flash"}
    run = RunConfig(cache_layout="cells", length=64, sampled_requests=1, **flash)
    gate_up_and_product, results = 8 * 3 * 704, 8 * 2816
    assert (pass_of(a, run).least or 0) > 4 * run.batched_tokens * (gate_up_and_product + results)


@pytest.mark.parametrize(
    ("name", "n_ctx", "n_ubatch", "printed"),
    [("llama-2-7b", 4096, 512, 296.00), ("llama-3.1-405b", 4096, 512, 1160.00),
     ("mistral-7b-v0.1", 8192, 256, 280.00), ("phi-3-mini", 4096, 256, 150.00)],
)  # fmt: skip
def test_compute_buffers_without_flash_attention_have_all_scores(name, n_ctx, n_ubatch, printed):
    """ggml-org/llama.cpp issue 9229, and three public logs with flash_attn = 0, in MiB.

    The last has its queries, keys and values in one matrix, and two states more than the least.
    """
    run = RunConfig(cache_layout="cells", batched_tokens=n_ubatch, length=n_ctx)
    a = mb.model(name).architecture
    term = pass_of(a, run)
    states = 2 * 4 * n_ubatch * a.d_model if name == "phi-3-mini" else 0
    assert printed == (term.least + states) / 2**20 <= term.n_bytes / 2**20


@pytest.mark.parametrize(
    ("name", "n_ctx", "n_ubatch", "kernel", "printed"),
    [("qwen-3-4b", 8192, 512, "flash", 85.01), ("qwen-3-8b", 8192, 512, "flash", 112.01),
     ("qwen-3-8b", 8192, 512, "math", 572.01), ("llama-3.2-3b", 4096, 1024, "flash", 168.03)],
)  # fmt: skip
def test_compute_buffers_have_the_logits_of_the_slots_alone(name, n_ctx, n_ubatch, kernel, printed):
    """Only here: builds since June 2026 reserve no logits of all tokens, and the mask in float16.

    MiB of public logs of its server: of CUDA, of CPU (build 10444) with flash attention and
    without, and of Ollama, of Ministral 3 3B, whose two slots have cells of their own.
    """
    shape = {"n_vocab": 131_072, "d_ff": 9216} if name == "llama-3.2-3b" else {}
    run = RunConfig(
        cache_layout="cells", batched_tokens=n_ubatch, sampled_requests=4, length=n_ctx,
        backend="gpu", dtype="bfloat16", attention_kernel=kernel,
    )  # fmt: skip
    term = pass_of(mb.model(name, **shape).architecture, run)
    assert term.least is not None
    assert term.least / 2**20 <= printed <= term.n_bytes / 2**20 <= 1.5 * printed


def test_compute_buffers_and_caches_are_those_that_llama_cpp_reserves():
    """Only here: MLA, recurrences, chosen experts' results and windows whose cells slots share.

    Where slots do not share cells, the least is theirs.
    """
    for row in csv.DictReader(COMPUTE_BUFFERS.read_text().splitlines()):
        numbers = {name: int(row[name]) for name in ("length", "batched_tokens", "drafted_tokens")}
        n = int(row["requests"])
        run = RunConfig(
            cache_layout="cells", dtype="bfloat16", backend="gpu", batch=n, sampled_requests=n,
            attention_kernel=row["attention_kernel"], **numbers,
        )  # fmt: skip
        a = mb.model(row["model"]).architecture
        term = pass_of(a, run)
        assert term.least / 2**20 <= float(row["compute_buffer"]) <= term.n_bytes / 2**20, row
        if row["unified"] == "yes":
            terms_of_cache = cache_terms(caches_on_device(a, run), run).values()
            cache = sum(term.total for term in terms_of_cache) / 2**20
            assert cache == pytest.approx(float(row["cache"]), abs=0.02), row


def test_llama_cpp_masks_the_cells_of_all_requests_by_hand():
    """Only here: the compute buffer was that of one request, however many were served.

    Slots share their cells (kv_unified), and each of 512 tokens masks them in float16; next to that
    are a gated MLP's three tensors and five states.
    """
    model, settings = mb.model("qwen-3-0.6b"), {"length": 4096}
    served = model.serve("24GB", settings, gguf="Q8_0", reserve=0)
    (term,) = (term for term in served.of_device.terms if term.name.startswith("compute"))
    weights, of_request = 633_000_000, 4096 * 28 * 2 * 8 * 128 * 2

    def compute_bytes(n: int) -> int:
        return 512 * (2 * 4096 * n + 4 * (3 * 3072 + 5 * 1024))

    assert term.n_bytes == compute_bytes(served.requests)
    assert served.of_device.terms[0].n_bytes == pytest.approx(weights, rel=0.001)
    of_all = [compute_bytes(n) + n * of_request for n in (served.requests, served.requests + 1)]
    room = 24 * 10**9 - served.of_device.terms[0].n_bytes
    assert of_all[0] <= room < of_all[1]
    longer = served.of_device.largest_length + 256
    grown = model.serve("24GB", settings | {"length": longer}, gguf="Q8_0", reserve=0)
    assert not grown.requests


def test_llama_cpp_has_logits_of_each_slot_by_hand():
    """Only here: requests at once need as many slots, of which there were four.

    Qwen 3 0.6B, 256 tokens each: of 512 tokens the logits of as many slots, and two states.
    """
    served = mb.model("qwen-3-0.6b").serve("24GB", {"length": 256}, gguf="Q8_0", reserve=0)
    (term,) = (term for term in served.of_device.terms if term.name.startswith("compute"))
    assert served.requests > 512
    assert term.n_bytes == 512 * 4 * (151_936 + 2 * 1024)


def test_compute_buffers_of_other_layers_are_not_guessed():
    a, run = mb.model("deepseek-v3.2").architecture, RunConfig(cache_layout="cells")
    assert pass_of(a, run).note == f"{NOT_KNOWN}: llama.cpp's of mla with an indexer"
    rwkv = mb.model("rwkv-7-0.4b").architecture  # whose class names a module so
    assert pass_of(rwkv, run).note == f"{NOT_KNOWN}: llama.cpp's of rwkv7"


def test_a_file_of_llama_cpp_on_a_mac():
    """Llama 3 8B: 4,912,898,048 bytes of tensors (llama.cpp's dry run), 32 layers, 8 key heads.

    The table of tokens, 128,256 × 4,096 numbers in Q4_K, may be mapped with the others.
    """
    model, settings = mb.model("llama-3-8b"), {"length": 32_768}
    found = model.serve("apple-16gb", settings, gguf="q4_k_m")
    weights = found.of_device.terms[0]
    assert weights.n_bytes == 4_912_898_048
    assert weights.least == 4_912_898_048 - 128_256 * 4096 // 256 * 144
    assert found.of_device.request_bytes == 32_768 * 32 * 2 * 8 * 128 * 2
    assert (found.grade, found.requests) == ("fits", 1)
    assert model.serve("apple-16gb", settings, gguf="Q8_0").grade == "does not fit"
    assert model.serve("rtx-4090", settings, gguf="q4_k_m").of_device.terms[0].how == "exact"


@pytest.mark.parametrize("name", ["mpt-7b", "bloom-7.1b"])
def test_kernels_of_engines_add_alibi_without_a_mask(name):
    """vLLM's take slopes of heads. Only here: a mask of 32 × 8,192 × 8,192 numbers is 4.3 GB."""
    a, run = mb.model(name).architecture, RunConfig(dtype="bfloat16")
    assert forward_bytes(a, run) == forward_bytes(a.model_copy(update={"position": "none"}), run)
    settings = {"length": 2048, "batched_tokens": 8192}
    assert mb.model(name).serve("l4", settings).requests == 5


def test_a_file_in_float32_is_served_in_half(tmp_path):
    """`_resolve_auto_dtype` of vLLM's config/model.py; a T4 has no bfloat16."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"torch_dtype": "float32"}))
    for device, dtype in (("l4", "bfloat16"), ("t4", "float16")):
        found = mb.model(path).serve(device, {"length": 64})
        assert found.run.dtype == dtype
        assert f"dtype: {dtype}, as vLLM serves a file in float32; `dtype=float32`" in found.notes
    exact = mb.model(path).serve("l4", {"length": 64, "dtype": "float32"})
    assert exact.run.dtype == "float32"
    assert not any("as vLLM serves" in note for note in exact.notes)


def test_a_device_without_bfloat16_serves_float16(tmp_path):
    """`_resolve_auto_dtype` of vLLM's config/model.py; a file in float16 stays so on all."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"torch_dtype": "bfloat16"}))
    on_t4 = mb.model(path).serve("t4", {"length": 64})
    assert on_t4.run.dtype == "float16"
    assert "dtype: float16, as vLLM serves a file in bfloat16; `dtype=bfloat16`" in on_t4.notes
    path.write_text(json.dumps(LLAMA | {"torch_dtype": "float16"}))
    assert mb.model(path).serve("l4", {"length": 64}).run.dtype == "float16"


def test_llama_cpp_has_its_cache_in_f16_whatever_the_dtype_of_a_model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"torch_dtype": "float32"}))
    half, whole = (
        mb.model(path).serve("l4", {"length": 256, **dtype}, gguf="Q8_0").of_device.request_bytes
        for dtype in ({}, {"dtype": "float32"})
    )
    assert whole == 2 * half


def test_llama_cpp_has_its_cache_in_f16_whatever_the_cache_of_a_checkpoint(tmp_path):
    """A checkpoint with keys and values in FP8, as vLLM reads it, becomes a file without."""
    fp8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
    keys = {"quant_method": "compressed-tensors", "kv_cache_scheme": fp8, "config_groups": {}}
    for quantization in ({}, {"quantization_config": keys}):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | quantization))
        model = mb.model(tmp_path)
        assert model.run().cache_dtype == ("fp8" if quantization else "dtype")
        assert model.serve("l4", {"length": 256}, gguf="Q8_0").run.cache_dtype == "dtype"


@pytest.mark.parametrize(
    ("device", "tokens"), [("h100", 8192), ("b200", 8192), ("a100-80gb", 2048), ("l4", 2048)]
)
def test_a_server_batches_fewer_tokens_on_smaller_devices(device, tokens):
    """`get_batch_defaults` of vLLM's engine/arg_utils.py: an A100 counts as one of them."""
    served = mb.model("qwen-3-8b").serve(device, {"length": 4096})
    assert served.run.batched_tokens == tokens


def test_a_log_of_gemma_4_has_the_windows_of_the_default_batch():
    """vLLM 0.21 on an L4, 9.92 GiB: 1,062,157 tokens, 129.66 requests of 8,192. By hand: four
    groups of three layers have windows of 512 and a batch of 2,048 in 80 blocks of 32 tokens and
    one more, and three full layers 512 blocks of 16.
    """
    served = mb.model("google/gemma-4-E2B").serve("l4", {"length": 8192}).of_device
    blocks = 9.92 * 2**30 / served.block_bytes
    assert served.request_blocks == 4 * (80 + 1) + 512
    assert served.request_blocks * 129.66 == pytest.approx(blocks, rel=0.001)


def test_replicas_serve_as_much_each():
    one = mb.model("qwen-3-8b").serve("h100", {"length": 4096})
    four = mb.model("qwen-3-8b").serve("h100", {"length": 4096, "tensor_parallel": 1}, devices=4)
    assert four.requests == 4 * one.requests


def test_heads_of_gated_deltanet_are_divided():
    """Only here: vLLM's pages of Qwen3-Next on 2 and 4 devices, 544 and 272 tokens for a state.

    A device's half of a layer's state: 3 × 4,096 and 16 × 128 × 128 numbers of 2 bytes; of a token,
    one of two heads of 256 on each.
    """
    model = mb.model("qwen3-next-80b-a3b")
    one = mb.model("qwen3-next-80b-a3b").serve("b200", {})
    for devices in (2, 4):
        found = model.serve("h200", {}, devices).of_device
        state = 2 * (3 * 8192 + 32 * 128 * 128) // devices
        assert found.block_tokens == 16 * -(-state // (16 * 2 * 256 * 2))
        share = terms(one)["weights"] / devices
        assert share < found.terms[0].n_bytes < 1.01 * share  # routers and norms are whole


def test_heads_of_recurrences_are_divided_by_hand():
    """As vLLM's mamba_mixer2.py, kda.py and linear_attn.py divide them, on two devices.

    The only group of Granite's Mamba-2 is on each, and so are the narrow halves of Kimi's decay and
    gate. Parameters of one layer, and numbers of the state of a request.
    """
    jamba = {"mixers": "selective_scan attention", "d_scan": 8192, "d_scan_state": 16}
    jamba |= {"d_scan_step": 256, "d_scan_convolution": 4}
    granite, kimi, minimax, scan = (
        mb.model("granite-4.0-h-small"), mb.model("kimi-linear-48b-a3b"), mb.model("minimax-m1"),
        mb.model("llama-3-8b", **jamba),
    )  # fmt: skip
    for model, devices, mixer, of_layer in (
        (
            granite, 2, "mamba2",
            4096 * (2 * 64 * 64 + 2 * 128 + 64) + (64 * 64 + 2 * 128) * (4 + 1) + 3 * 64
            + 64 * 64 + 64 * 64 * 4096,
        ),
        (
            kimi, 2, "kimi_delta",
            3 * 2304 * 16 * 128 + 2 * (2304 * 128 + 128 * 16 * 128) + 2304 * 16 + 16 + 16 * 128
            + 3 * 16 * 128 * 4 + 128 + 16 * 128 * 2304,
        ),
        (minimax, 8, "lightning_attention", 5 * 6144 * 8 * 128 + 8 * 128),
        (
            scan, 8, "selective_scan",
            2 * 4096 * 1024 + 1024 * (4 + 1) + 1024 * (256 + 2 * 16) + 256 * 1024 + 1024
            + 1024 * 16 + 1024 + 256 + 2 * 16 + 1024 * 4096,
        ),
    ):  # fmt: skip
        share = rank_of(model.architecture, RunConfig(tensor_parallel=devices))
        counts = predicted("parameters", share, RunConfig())
        of_mixer = [term.each for path, term in counts.items() if f".{mixer}." in path]
        assert sum(of_mixer) == of_layer, mixer
    served = granite.serve("h100", {"length": 8192}, 2)
    state = 2 * (3 * (64 * 64 + 2 * 128) + 64 * 64 * 128)
    assert served.of_device.block_tokens == 16 * -(-state // (16 * 2 * 4 * 128 * 2))
    assert served.requests > 0
    with pytest.raises(InputError, match=r"n_mamba_group = 8: 16 devices .*tensor_parallel=8"):
        mb.model("granite-4.0-h-small", n_mamba_group=8).serve("h100", {}, 16)


def test_the_scans_of_engines_have_states_of_chunks_at_the_most():
    """vLLM's mamba/ops/ssd_combined.py, by hand: states of 64 chunks of 128 tokens, 5,120 × 128
    numbers in float32, before and after they are passed on. Its profile run calls no scan.
    """
    found = mb.model("mamba-2-2.7b").serve("rtx-4090", {"batched_tokens": 8192})
    (forward,) = (term for term in found.of_device.terms if term.name.startswith("forward"))
    of_chunks = 2 * 64 * 5120 * 128 * 4
    assert forward.n_bytes - forward.least == of_chunks
    assert forward.least > 8192 * 2 * (2 * 5120 + 2 * 128 + 80)  # the first product
    # fla/ops/chunk_delta_h.py: of 128 chunks of 64 tokens in the dtype, half as many bytes.
    hybrid = mb.model("qwen3-next-80b-a3b").serve("b200", {"sampled_requests": 1})
    (forward,) = (term for term in hybrid.of_device.terms if term.name.startswith("forward"))
    assert forward.n_bytes - forward.least >= 128 * 32 * 128 * 128 * 2
    assert mb.model("granite-4.0-h-small").serve("h100", {"length": 32768}).requests > 10


def test_terms_of_adapters_drafts_prefixes_and_host_layers():
    """Arithmetic over sizes of Qwen 3 8B: 36 layers, d 4096, ff 12288, 32 and 8 heads of 128."""
    model, settings = mb.model("qwen-3-8b"), {"length": 4096, "dtype": "bfloat16"}
    plain = model.serve("h100", settings)
    more = settings | {"served_adapters": 3, "adapter_rank": 16}
    with_adapters = model.serve("h100", more | {"adapter_targets": "query down"})
    of_one = 36 * 16 * ((4096 + 4096) + (12288 + 4096)) * 2
    assert terms(with_adapters)["adapters"] == 3 * of_one
    drafted = model.serve("h100", settings, draft="qwen-3-0.6b")
    draft = mb.model("qwen-3-0.6b")
    assert terms(drafted)["draft model"] == 2 * draft.parameters().total
    of_draft = draft.predict("cache_bytes", settings).total
    assert drafted.of_device.request_bytes == plain.of_device.request_bytes + of_draft
    # Both models' layers are of one block: it was shown with the model's layers alone.
    of_both = drafted.of_device
    assert of_both.block_bytes - plain.of_device.block_bytes == 16 * 28 * 2 * 8 * 128 * 2
    assert drafted.requests == of_both.blocks // of_both.request_blocks
    prefix = model.serve("h100", settings | {"shared_prefix": 1000})
    assert prefix.of_device.shared_bytes == 62 * prefix.of_device.block_bytes
    blocks = prefix.of_device.blocks
    assert prefix.requests == (blocks - 62) // (256 - 62)
    host = model.serve("rtx-4090", settings | {"host_layers": 9})
    of_layer = (terms(plain)["weights"] - 2 * (2 * 151_936 * 4096 + 4096)) // 36
    assert terms(host)["weights"] == terms(plain)["weights"] - 9 * of_layer
    assert host.of_device.block_bytes * 36 == plain.of_device.block_bytes * 27


def test_first_layers_on_the_host_of_layers_that_differ():
    """Gemma 3: of 62 layers every sixth keeps all tokens; GLM-4.5: one dense layer, then experts.

    They were refused, and no option helped where one did.
    """
    settings = {"length": 32_768, "cache_layout": "cells", "batched_tokens": 512}
    gemma = mb.model("gemma-3-27b")
    for n, n_global in (0, 10), (5, 10), (6, 9), (61, 0):
        found = gemma.serve("h200", settings | {"host_layers": n}).of_device
        windowed = 1024 + 512  # cells, with the batch that is written before others are dropped
        cells = n_global * 32_768 + (62 - n - n_global) * windowed
        assert found.request_bytes == cells * 2 * 16 * 128 * 2
    glm = mb.model("glm-4.5-air")
    one, two, three = (
        terms(glm.serve("h200", settings | {"host_layers": n}))["weights"] for n in (1, 2, 3)
    )
    of_experts = 2 * 129 * 3 * 4096 * 1408
    assert one - two == two - three > of_experts


def test_sampling_may_need_more_than_the_forward_pass_by_hand():
    """vLLM's defaults: 1,024 requests on an H100, 256 on an A100 and smaller ones; of each 128,256
    logits in bfloat16 and three arrays in float32.
    """
    model = mb.model("llama-3.2-1b")
    for device, n in ("h100", 1024), ("a100-80gb", 256), ("l4", 256):
        settings = {"length": 128, "batched_tokens": 64}
        (forward,) = (term for term in model.serve(device, settings).of_device.terms
                      if term.name.startswith("forward"))  # fmt: skip
        assert (forward.n_bytes, forward.least) == (n * 128_256 * 14,) * 2
        assert forward.note == f"sampling for {n:,} requests"


@pytest.mark.parametrize(
    ("n_row", "n_vocab", "printed"),
    [(256, 131_072, 1280), (48, 32_768, 78.50), (4, 32_768, 6.79), (1, 32_768, 1.52)],
)
def test_what_torchs_sort_takes_is_what_vllm_measured(n_row, n_vocab, printed):
    """MiB of its pull requests 32558 (1.25 GB), 33538 and 42191: of logits in float32, and of a
    copy of them, which torch filters by top-k and top-p. Histograms of the sort are up to 0.5 MiB.
    """
    numbers = n_row * n_vocab
    assert 0 <= printed - numbers * (2 * 4 + sort_bytes(n_row)) / 2**20 <= 0.5


def test_sampling_by_a_sort_holds_logits_twice_by_hand():
    model = mb.model("qwen-2.5-7b")
    settings = {"length": 128, "batched_tokens": 64, "sampled_requests": 256}
    (forward,) = (term for term in
                  model.serve("h100", settings | {"sampling_kernel": "sort"}).of_device.terms
                  if term.name.startswith("forward"))  # fmt: skip
    assert forward.n_bytes == 256 * 152_064 * (2 + 4 + 4 + 8 + 8 + 4 + 8)
    assert forward.note == "sampling for 256 requests, sorted by torch"


@pytest.mark.parametrize(
    ("model", "device", "devices", "settings", "printed"),
    [("Qwen/Qwen3.5-0.8B", "h100", 1, {"utilisation": 92}, 67.08),
     ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "l40s", 2,
      {"utilisation": 95, "batched_tokens": 2048, "expert_parallel": 2}, 25.91),
     ("opt-2.7b", "23.5GiB", 4,
      {"utilisation": 80, "batched_tokens": 2048, "dtype": "float16"}, 17.24),
     ("ibm-granite/granite-4.0-micro", "l40s", 1,
      {"utilisation": 90, "weights": "fp8-tensor", "sampling_kernel": "sort"}, 35.34),
     ("gpt-oss-120b", "h100", 1,
      {"utilisation": 95, "batched_tokens": 1024, "sampling_kernel": "sort"}, 1.71)],
)  # fmt: skip
def test_room_for_the_cache_is_what_vllm_logs_but_for_the_reserve(
    model, device, devices, settings, printed
):
    """GiB of rows of tests/golden/server_logs.csv."""
    served = mb.model(model).serve(device, {"length": 2048} | settings, devices).of_device
    (reserve,) = (term.n_bytes for term in served.terms if term.name == "reserve")
    assert served.cache_bytes <= printed * 2**30 <= served.most_cache_bytes + reserve


def test_models_whose_experts_were_released_in_4_bits_by_hand():
    """Kimi K2 Thinking and K2.5: 384 routed experts of 60 layers, three matrices of 7,168 × 2,048
    numbers each, with a scale for 32 of them and the shape of each; all else in bfloat16. A device
    of eight has an eighth, but for what MLA, norms and routers have whole.
    """
    model = mb.model("moonshotai/Kimi-K2.5")
    served = model.serve("h200", {"length": 8192}, 8)
    matrices = 60 * 384 * 3
    routed = matrices * 7168 * 2048
    whole = model.predict("parameter_bytes", {"dtype": "bfloat16", "weights": "int4-group"}).total
    others = model.parameters().total - routed
    assert whole == 2 * others + routed * 4 // 8 + routed // 32 * 2 + matrices * 16
    assert whole / 8 < terms(served)["weights"] < 1.05 * whole / 8
    assert served.requests > 0
    assert "weights: int4-group, as released" in served.notes[0]


@pytest.mark.parametrize(
    ("devices", "d_expert", "padded"), [(1, 2880, 2944), (2, 1472, 1536), (4, 768, 768)]
)
def test_kernels_of_vllm_pad_experts_by_hand(devices, d_expert, padded):
    """gpt-oss 120B: 128 experts of 36 layers, three matrices of 2,880 × 2,880 numbers in 4 bits
    with a scale for 32. Of a half and a quarter, 1,440 and 720 channels, Triton's have multiples of
    64, and Marlin's of 128, and 3,072 in place of 2,880 of the model. 4 devices were refused.
    """
    served = mb.model("gpt-oss-120b").serve("h100", {"length": 128}, devices).of_device
    (padding,) = (term for term in served.terms if term.name == "padding of experts")
    more = 36 * 128 * 3 * (3072 * padded - 2880 * d_expert) * 17 // 32
    biases = 36 * 128 * 4 * (2 * (padded - d_expert) + 3072 - 2880)
    assert (padding.n_bytes, padding.least) == (more + biases, 0)
    experts = 36 * 128 * (3 * 2880 * d_expert * 17 // 32 + 4 * (2 * d_expert + 2880))
    assert experts < served.terms[0].n_bytes < experts + 4_400_000_000 // devices


def test_torchs_allocator_rounds_weights_up_by_hand():
    """Qwen2.5 7B: of 28 layers 31.5 MiB of query, key and value, 259 of gate and up and 129.5 of
    down, and two tables of 1,039.5; 24.5 of output leave 1.5 MiB for others. Segments have 2 MiB.
    """
    served = mb.model("qwen-2.5-7b").serve("h100", {"length": 128}).of_device
    (rounding,) = (term for term in served.terms if term.name == "rounding of weights")
    assert rounding.n_bytes == (28 * (2**19 + 2**20 + 2**19) + 2 * 2**19)
    assert rounding.least == 0
    assert "rounding of weights" not in terms(
        mb.model("qwen-2.5-7b").serve("h100", {"length": 128, "weights": "fp8-channel"})
    )


@pytest.mark.parametrize(
    ("model", "rows", "n_ctx", "width"),
    [("google/gemma-3-4b-it", 8 + 1, 131_072, 256), ("gemma-3-1b", 2, 32_768, 256),
     ("qwen-2.5-7b", 1, 131_072, 128), ("zamba2-1.2b", 1, 4_096, 128),
     ("Qwen/Qwen2.5-VL-7B-Instruct", 4, 128_000, 128)],
)  # fmt: skip
def test_rows_of_tables_of_rope_by_hand(model, rows, n_ctx, width):
    """vLLM's rotary_embedding/: linear scaling by 8 and another base in windows, and M-RoPE."""
    served = mb.model(model).serve("h200", {"length": 128, "dtype": "bfloat16"}).of_device
    (table,) = (term for term in served.terms if term.name == "RoPE table")
    assert (table.n_bytes, table.least or table.n_bytes) == (
        2 * rows * n_ctx * width, 2 * n_ctx * width)  # fmt: skip


SERVED = {"decoder", "encoder-decoder", "per-layer-input", "selective-scan", "state-space-dual"}


def test_every_kind_of_model_is_served_or_refused():
    """Only here: fields that formulas of serving read and a family lacks (n_ctx, d_rotary)."""
    kinds = {(b.family, b.fields.get("position")): b.name for b in all_models(CATALOGUE)}
    served = set()
    for (family, _), name in kinds.items():
        with suppress(InputError):
            assert mb.model(name).serve("h200", {"length": 128}).of_device.requests
            served.add(family.name())
    assert served == SERVED | {"zamba2"}


def test_every_kind_of_model_is_served_by_llama_cpp_or_refused():
    """Only here: fields that its compute buffer reads and a family lacks (n_head, position)."""
    kinds = {(b.family, b.fields.get("position")): b.name for b in all_models(CATALOGUE)}
    served = set()
    for (family, _), name in kinds.items():
        with suppress(InputError):
            settings = {"length": 128, "cache_layout": "cells", "attention_kernel": "math"}
            assert mb.model(name).serve("h200", settings).of_device.requests
            served.add(family.name())
    assert served >= {"decoder", "per-layer-input", "selective-scan", "rwkv7"}


def test_weights_are_what_vllm_logs():
    """Loading took 14.9888 GB of Llama 3.1 8B in bfloat16: vllm-project/vllm issue 10517."""
    found = terms(mb.model("llama-3.1-8b").serve("h100", {"length": 128}))
    assert f"{(found['weights'] + found['RoPE table']) / 2**30:.2f}" in ("14.96", "14.99")


def test_the_command_answers_in_a_screen_and_as_data(monkeypatch, capsys):
    def command(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["modelbudget", *arguments])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().out

    args = ["llama-3.1-70b", "--weights", "fp8-channel", "--serve", "h100-80gb", "--devices", "2",
            "--length", "8192", "--set", "sampled_requests=1"]  # fmt: skip
    text = command(*args)
    _, *lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 24
    assert any("requests at once" in line and " 28" in line and "to 29" in line for line in lines)
    data = json.loads(command(*args, "--json"))
    assert data["requests"] == 28
    assert (data["tensor_parallel"], data["context_parallel"]) == (2, 1)
    assert (data["dtype"], data["cache_dtype"]) == ("bfloat16", "dtype")
    assert {term["how"] for term in data["terms"]} == {"exact", "bounded", "read"}


@pytest.mark.parametrize(
    ("name", "settings", "devices", "message"),
    [
        ("falcon-mamba-7b", {}, 2, "tensor_parallel = 2: .* allowed: `tensor_parallel=1"),
        ("whisper-large-v3", {}, 1, r"no formula .* allowed: `fit\(h100, training=False\)`, by a"),
        ("stablelm-2-12b", {}, 2, "qk_norm = separate: .* allowed: `tensor_parallel=1"),
        ("llama-3-8b", {}, 3, "n_head = 32: 3 devices do not divide it; .*tensor_parallel=1`$"),
        ("qwen-2.5-7b", {}, 8, "n_head = 28: 8 devices do not divide it; .*tensor_parallel=4`$"),
        # 20 heads of queries, 4 of keys and values, 2 groups of Mamba-2; and five heads of keys.
        ("tiiuae/Falcon-H1-34B-Base", {}, 8, "n_head = 20: 8 devices .*tensor_parallel=2`$"),
        ("microsoft/bitnet-b1.58-2B-4T-bf16", {}, 8, "n_head = 20: .*tensor_parallel=1`$"),
        ("rwkv-4-14b", {}, 4, "vLLM .* has no model with rwkv"),
        ("t5-base", {"weights": "bnb-4bit"}, 1, "which matrices of encoder-decoder are converted"),
        ("mamba-2.8b", {"weights": "awq"}, 1, "which matrices of selective-scan are converted"),
        ("t5-base", {"host_layers": 2}, 1, "host_layers = 2: known of decoders"),
        ("t5-base", {"served_adapters": 2}, 1, "served_adapters: adapter_targets = all-linear"),
        ("llama-3-8b", {"tensor_parallel": 3}, 4, "a tensor_parallel that divides them"),
        (
            "llama-3-8b",
            {"shared_prefix": 8, "cache_layout": "cells"},
            1,
            "needs cache_layout: paged",
        ),
        ("gpt-2-124m", {"length": 1025}, 1, "length = 1,025: position: learned has n_ctx = 1,024"),
        ("llama-3-8b", {"adapter": "lora"}, 1, "not known in serving"),
        ("llama-3-8b", {"cache_block": 7}, 1, "cache_block = 7: .* multiples of 16 tokens"),
        ("llama-3-8b", {"cache_dtype": "q4_0"}, 1, "llama.cpp's, and vLLM has no such"),
        ("llama-3-8b", {"cache_dtype": "int4-group"}, 1, "QuantizedCache, which no engine has"),
        ("llama-3-8b", {"cache_dtype": "fp8", "cache_layout": "cells"}, 1, "allowed: q8_0"),
        ("llama-3-8b", {"cache_dtype": "q8_0", "cache_layout": "cells", "attention_kernel": "math"},
         1, "q8_0: llama.cpp has quantised values with flash attention alone"),
        ("llama-3-8b", {"pipeline_parallel": 2, "pipeline_schedule": "gpipe"}, 1,
         "pipeline_parallel = 2: not known in serving; allowed: 1"),
        ("llama-3-8b", {"sequence_parallel": True}, 2,
         "sequence_parallel = true: not known in serving; allowed: false"),
        ("llama-3-8b", {"tensor_parallel": 0}, 1, "tensor_parallel = 0: must be a whole"),
        ("llama-3-8b", {"data_parallel": "two"}, 1, "data_parallel = 'two': must be"),
        ("llama-3-8b", {"zero": 3, "data_parallel": 2}, 2, "zero = 3: not known in serving"),
        ("llama-3-8b", {"data_parallel": 2}, 1, "data_parallel = 2; .* times data_parallel$"),
        ("qwen-3-30b-a3b", {"data_parallel": 2, "expert_parallel": 2}, 4,
         "`devices=4`: tensor_parallel = 2, .* allowed: an expert_parallel of 1 or 4"),
        ("qwen-3-30b-a3b", {"data_parallel": 256, "expert_parallel": 256}, 256,
         "n_expert = 128: 256 devices do not divide it; allowed: `expert_parallel=128"),
        ("llama-3-8b", {"context_parallel": 2}, 8, r"1 keep the same heads .*\(n_kv_head = 8\)"),
        ("llama-3-8b", {"context_parallel": 3}, 4, "a context_parallel that divides"),
        ("gpt-oss-20b", {"context_parallel": 2}, 16, "vLLM divides no windows"),
        ("llama-3-8b", {"context_parallel": 2, "cache_layout": "cells"}, 16, "needs cache_layout"),
        # 768 hidden channels of an expert are six blocks: vLLM fails too (issue 25292 of its).
        ("qwen-3-30b-a3b", {"weights": "fp8-block"}, 4,
         "gate: 192 of 768 .* a multiple of 128.*, or `expert_parallel=4"),
        ("qwen-3-30b-a3b", {"weights": "gptq-4bit"}, 4, "down: 192 of 768 .* a multiple of 128"),
        ("llama-3-8b", {"host_layers": 32}, 1, "at most 31"),
        ("gemma-4-e2b", {"host_layers": 2}, 1, "host_layers = 2: known of decoders alone"),
        ("falcon-mamba-7b", {"context_parallel": 2}, 8, "selective-scan: not divided in serving"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_one_line(name, settings, devices, message):
    with pytest.raises(InputError, match=message) as error:
        mb.model(name).serve("h100", settings, devices)
    assert len(error.value.mistakes) == 1


def test_whole_experts_are_what_the_refusal_of_their_parts_offers():
    settings = {"weights": "fp8-block", "expert_parallel": 4}
    assert mb.model("qwen-3-30b-a3b").serve("h100", settings, 4).requests > 0


def test_a_file_whose_format_has_no_formula_is_refused_with_the_reason(tmp_path):
    """It was refused as `adapter = none, weights = unknown`."""
    keys = LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 5}}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    with pytest.raises(InputError, match=r"gptq: no formula covers it.*allowed: `weights`"):
        mb.model(tmp_path).serve("h100")


def test_layers_that_draft_keep_what_the_last_mixer_keeps():
    """Qwen3-Next: a further layer of attention, no further state, in a cache of another dtype too.

    Only here: layers that draft in a model whose layers keep different things.
    """
    hybrid = mb.model("qwen3-next-80b-a3b", n_layer=4, n_mtp_layer=1)
    settings = {"length": 4096, "dtype": "bfloat16", "cache_layout": "contiguous"}
    plain, drafted = (
        hybrid.serve("h200", settings, draft=draft).of_device.request_bytes
        for draft in (None, "mtp")
    )
    assert drafted - plain == 4096 * 2 * 2 * 256 * 2
    assert hybrid.serve("h200", settings, draft="mtp").run.drafted_tokens == 1


@pytest.mark.parametrize(
    ("name", "weights"),
    [("Qwen/Qwen2.5-7B-Instruct-AWQ", " with weights awq, which AutoAWQ writes"),
     ("someone/Qwen2.5-7B-Instruct", "")],
)  # fmt: skip
def test_a_name_that_was_taken_for_a_model_is_a_note(name, weights):
    notes = mb.model(name).serve("l4", {"length": 512}).notes
    (line,) = (note for note in notes if note.startswith("taken for"))
    assert line.endswith(f"{weights}, by its name; its own config.json was not read")


def test_windows_that_no_formula_has_are_a_note(tmp_path):
    """Only here: the line was below the budget of a file, and not below what it serves."""
    keys = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 2,
            "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(keys))
    line = "use_sliding_window = true: not used: all layers attend all tokens here"
    assert line in mb.model(tmp_path).serve("h100", {"length": 128}).notes


def test_a_draft_without_a_model_is_none():
    """It was refused as an unknown model."""
    with pytest.raises(InputError, match=r"`draft=ngram`: .*neither weights nor a cache") as error:
        mb.model("qwen-2.5-7b").serve("h100", {"length": 64}, draft="ngram")
    assert len(error.value.mistakes) == 1


def test_a_head_of_eagle_is_a_layer_that_drafts():
    """vLLM's models/llama_eagle.py: a layer of the model and a projection of two states, 8,192 to
    4,096; embedding and head are the model's. Only the layer's first norm is not there.
    """
    settings = {"length": 4096, "batched_tokens": 1024}
    drafted = mb.model("llama-3.1-8b", n_mtp_layer=1).serve("h100", settings, draft="mtp")
    of_layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    head = 2 * (of_layer - 4096 + 2 * 4096 * 4096)
    assert head < terms(drafted)["layers that draft"] < 1.0001 * head
    alone = mb.model("llama-3.1-8b").serve("h100", settings).of_device
    assert drafted.of_device.block_bytes * 32 == alone.block_bytes * 33


@pytest.mark.parametrize("devices", [1, 2])
def test_a_head_of_eagle_3_by_hand(devices):
    """Llama 3.1 8B: three states of 4,096 to one, 32 and 8 heads of 128 that read two, an MLP of
    14,336, four norms, and 32,000 tokens with an index of 8 bytes each; the projection is whole.
    """
    model, settings = mb.model("llama-3.1-8b"), {"length": 4096, "batched_tokens": 1024}
    drafted = model.serve("h100", settings, devices, draft="eagle3")
    attention = 2 * 4096 * (4096 + 2 * 1024) + 4096 * 4096
    divided = attention + 3 * 4096 * 14336 + 32_000 * 4096
    numbers = 3 * 4096 * 4096 + 4 * 4096 + divided // devices
    assert terms(drafted)["draft head"] == 2 * numbers + 8 * 32_000
    alone = model.serve("h100", settings, devices)
    assert "draft head" not in terms(alone)
    assert drafted.of_device.block_bytes * 32 == alone.of_device.block_bytes * 33
    with pytest.raises(InputError, match=r"draft_head = eagle3: .* n_head · d_head = d_model"):
        mb.model("qwen-3-4b").serve("h100", settings, draft="eagle3")


@pytest.mark.parametrize("name", ["t5-base", "falcon-mamba-7b", "gemma-3n-e2b"])
def test_a_head_of_eagle_3_is_refused_of_layers_without_its_sizes(name):
    """Only here: the cache of its layer was asked of models without mixers: a traceback."""
    with pytest.raises(InputError, match="draft_head = eagle3: known of dense decoders"):
        mb.model(name).serve("h100", {"length": 64}, draft="eagle3")


def test_a_head_of_eagle_3_is_counted_next_to_a_file():
    """Only here: its cache was, and its weights were not."""
    model = mb.model("llama-3.1-8b")
    settings = {"length": 64, "dtype": "bfloat16"}
    of_file, of_vllm = (
        terms(model.serve("h100", settings, draft="eagle3", gguf=gguf)) for gguf in ("Q8_0", None)
    )
    assert of_file["draft head"] == of_vllm["draft head"]


def test_a_draft_has_the_vocabulary_of_its_model():
    """vLLM 0.30 refuses Qwen2.5 0.5B (151,936) for Qwen2.5 7B (152,064); llama.cpp does not."""
    model = mb.model("qwen-2.5-7b")
    with pytest.raises(InputError, match="n_vocab = 151,936, and the model's 152,064") as error:
        model.serve("h100", {"length": 64}, draft="qwen-2.5-0.5b")
    assert len(error.value.mistakes) == 1
    assert model.serve("h100", {"length": 64, "cache_layout": "cells"}, draft="qwen-2.5-0.5b")


def test_layers_for_further_tokens_are_not_offered_where_files_lack_them():
    with pytest.raises(InputError, match=r"no such layers; allowed: the name of a model$"):
        mb.model("qwen-3-8b").serve("h100", {"cache_layout": "cells"}, draft="mtp")
