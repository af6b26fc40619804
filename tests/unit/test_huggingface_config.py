"""A config.json from a model page: known classes, unknown ones, and what is refused."""

import dataclasses
import json
import signal
import socket
import time

import polars as pl
import psutil
import pytest
from helpers.config_files import LLAMA, XLNET
from helpers.tiers import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from modelbudget.architecture.terms import total
from modelbudget.common import workers
from modelbudget.common.errors import InputError
from modelbudget.common.workers import Bound, Helper
from modelbudget.compare.comparison import compare, verdict
from modelbudget.families import families
from modelbudget.huggingface import bounded_check, class_code
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.offline import transformers
from modelbudget.huggingface.read_config import fields_of
from modelbudget.huggingface.value_meanings import NoFormulaError
from modelbudget.huggingface.write_config import config_of
from modelbudget.measurement.count import count
from modelbudget.measurement.measured_table import measured_table
from modelbudget.measurement.process import measure_in_processes
from modelbudget.measurement.process.measure_in_processes import measure_all
from modelbudget.measurement.reference.class_counts import build, witness
from modelbudget.predict.predict import predict
from modelbudget.sweeps.class_config import FILE, class_config, classes_of
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.sweep_file import Measure

TRANSLATIONS = {kind: one for kind, one in translations().items() if one.in_transformers}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
REAL = {
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6},  # its class has no default for this one
    "CohereCompassForCausalLM": {"rope_parameters": {"full_attention": ROPE}},
    "DbrxForCausalLM": {"attn_config": {"rope_theta": 5e5}},
    "Gemma2ForCausalLM": {"num_hidden_layers": 3},
    "LlamaForCausalLM": {"num_key_value_heads": 8, "attention_bias": True},
    # Their classes do not fill in these sizes.
    "Dots1ForCausalLM": {
        "n_routed_experts": 128,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
    },
    "HunYuanDenseV1ForCausalLM": {"head_dim": 128},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "HunYuanMoEV1ForCausalLM": {"head_dim": 128, "num_experts": 4},
    "MinistralForCausalLM": {"head_dim": 128},
    "NemotronForCausalLM": {"head_dim": 128, "num_key_value_heads": 8},
}
"""What a file has in addition to the defaults of its class."""


@pytest.fixture
def from_config(tmp_path, sweep):
    """Write a config.json next to a sweep file and expand a sweep over it."""

    def expand_config(config: dict | str, rest: str = "points: [{base: config.json}]"):
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "config.json").write_text(text)
        return sweep(rest)

    return expand_config


ON_META = Measure(device="meta", quantities=["parameters"])


def compared(expanded) -> pl.DataFrame:
    points = points_table(expanded.points)
    results = measure_all([(p.architecture, p.run) for p in expanded.points], ON_META, 1)
    axes = sorted({name for point in expanded.points for name in point.axes})
    return compare(
        points,
        predict(points, ON_META.quantities),
        measured_table(results, ON_META.quantities),
        axes,
    )


@pytest.mark.parametrize(
    "kind",
    [
        kind if number % 3 == 0 else pytest.param(kind, marks=pytest.mark.slow)
        for number, kind in enumerate(TRANSLATIONS)
    ],
)
def test_a_file_as_its_own_class_writes_it(from_config, kind):
    """Formula, own module and transformers' class agree on the class's own config.json."""
    config_class = getattr(transformers, kind).config_class
    own = config_class(**REAL.get(kind, {}), architectures=[kind])
    expanded = from_config(own.to_json_string(use_diff=False))
    (point,) = expanded.points
    assert point.transformers == kind
    (result,) = measure_all([(point.architecture, point.run)], ON_META, 1)
    predicted = total(point.architecture.parameters(point.architecture))
    assert predicted == sum(result.values["parameters"].values())
    there = witness(kind, class_config(kind, point.architecture)).parameters
    assert predicted - there == left_out(kind, point.architecture)
    (of_point,) = classes_of(points_table(expanded.points))
    assert of_point.built_from == FILE
    assert witness(kind, of_point.config).parameters == there


def left_out(kind: str, a) -> int:
    """The known differences, written out again: what the class has fewer."""
    if kind == "NemotronHForCausalLM":
        parts = a.mlps.split()
        return a.n_expert * sum(parts[i % len(parts)] == "moe" for i in range(a.n_layer))
    if kind in BUFFERS and a.router_bias == "selection":
        return a.n_expert * (a.n_layer - a.n_dense_layer)
    if kind in ("MT5ForConditionalGeneration", "T5ForConditionalGeneration"):
        return 0 if a.tied else a.n_vocab * a.d_model
    if kind.startswith(("Marian", "Pegasus")):
        return -a.n_ctx * a.d_model * (2 if a.n_encoder_layer else 1)
    sines = a.n_ctx * a.d_head if kind.startswith("RoFormer") else 0
    if TRANSLATIONS[kind].family == "encoder" and not kind.startswith(("ModernBert", "Electra")):
        return -sines - (0 if a.tied or not a.lm_head else a.n_vocab)
    return 0


BUFFERS = {
    f"{name}ForCausalLM"
    for name in (
        "DeepseekV3", "DeepseekV32", "Dots1", "ExaoneMoe", "Glm4Moe", "Glm4MoeLite", "GlmMoeDsa",
        "HYV3", "KimiLinear", "Lfm2Moe", "MiniMaxM2", "SolarOpen",
    )
}  # fmt: skip
"""Classes whose router has its bias for the selection of experts as a buffer."""


@pytest.mark.parametrize("kind", TRANSLATIONS)
def test_dtypes_in_which_a_class_keeps_parameters_in_float32(kind):
    """Bytes of the routers of Ernie 4.5 were those of bfloat16 under the name of the class."""
    class_ = getattr(transformers, kind)
    strict = {*(class_._keep_in_fp32_modules_strict or ())} - {"e_score_correction_bias"}
    kept = {"float16": strict | {*(class_._keep_in_fp32_modules or ())}, "bfloat16": strict}
    assert TRANSLATIONS[kind].float32_in == [dtype for dtype, names in kept.items() if names]


@pytest.mark.parametrize("kind", TRANSLATIONS)
def test_defaults_are_those_of_the_class(kind):
    config_class = getattr(transformers, kind).config_class
    declared = {f.name: f.default for f in dataclasses.fields(config_class)}
    whole = config_class().to_dict()
    translation = TRANSLATIONS[kind]
    assert config_class.model_type == translation.model_type
    for key, default in translation.defaults.items():
        spellings = [key, *(s for s, k in translation.aliases.items() if k == key)]
        found = [declared.get(s, whole.get(s)) for s in spellings if s in declared | whole]
        found += [value for s in spellings if "." in s and (value := nested(whole, s)) is not None]
        if found and default is None and not {*spellings} & declared.keys():
            fields = {"model_type": translation.model_type} | REAL.get(kind, {})
            a = resolved(families()[translation.family], fields_of(kind, fields))
            assert config_of(kind, a)[key] == found[0], key  # the class computes it, and so do we
        elif found:
            expected = list(found[0]) if isinstance(found[0], tuple) else found[0]
            assert default == expected, key
        else:  # read by getattr, or by the code of a model page alone: one value, or none
            meaning = translation.meaning(key)
            assert default is None or [case.value for case in meaning] == [default], key


def nested(config: dict, path: str):
    for part in path.split("."):
        config = config.get(part, {})
    return config or None


SMALL = {
    "n_vocab": st.integers(8, 40), "d_model": st.sampled_from([16, 32, 48]),
    "n_layer": st.integers(1, 4), "n_encoder_layer": st.integers(1, 3),
    "n_head": st.sampled_from([2, 4]), "n_kv_head": st.sampled_from([1, 2]),
    "d_head": st.sampled_from([4, 8]), "d_ff": st.integers(1, 40), "n_ctx": st.integers(8, 20),
    "n_expert": st.integers(2, 4), "n_expert_per_token": st.integers(1, 2),
    "n_linear_key_head": st.integers(1, 2), "d_rotary": st.just(4), "d_rope": st.just(4),
    "n_dense_layer": st.integers(0, 1), "n_mamba_head": st.sampled_from([2, 4]),
    "n_mamba_group": st.integers(1, 2), "d_index": st.integers(4, 9),
    "n_mlstm_head": st.sampled_from([2, 4]), "n_distinct": st.just(1),
    "n_kv_shared_layer": st.integers(0, 1), "n_stream": st.integers(2, 4),
    "n_bucket": st.sampled_from([8, 16]), "max_distance": st.just(64),
}  # fmt: skip
"""Sizes that fit each other; all other sizes are between 1 and 9."""
COMPUTED = {
    "num_kv_heads": st.sampled_from([1, 2, None]), "multi_query": st.booleans(),
    "new_decoder_architecture": st.just(False), "num_ln_in_parallel_attn": st.sampled_from([1, 2]),
    "_remove_final_layer_norm": st.booleans(), "word_embed_proj_dim": st.sampled_from([None, 8]),
    "partial_rotary_factor": st.sampled_from([0.5, 1.0]),
    "n_shared_experts": st.integers(1, 2), "q_lora_rank": st.sampled_from([None, 6]),
    "expand": st.just(2), "attention_hidden_size": st.none(), "num_decoder_layers":
    st.sampled_from([None, 1, 3]), "max_position_embeddings": st.integers(8, 20),
    "sliding_window": st.sampled_from([None, 3]), "layer_types": st.none(),
    **dict.fromkeys(("sliding_window_pattern", "global_attn_every_n_layers"), st.integers(1, 3)),
    "embedding_size": st.sampled_from([6, 16]), "mlp_layer_types": st.none(),
    "num_shared_experts": st.integers(1, 2), "decoder_vocab_size": st.none(),
    **dict.fromkeys(("mamba_n_heads", "mamba_d_head"), st.sampled_from([2, 4])),
    "mamba_expand": st.just(2), "attn_layer_indices": st.sampled_from([None, [0]]),
    "full_attn_idxs": st.sampled_from([None, [0]]), "block_multiple_of": st.just(4),
    "block_ffn_dim_multiplier": st.just(1.0), "block_auto_adjust_ff_dim": st.booleans(),
    "moe_num_shared_experts": st.integers(1, 2), "moe_layer_end_index": st.just(-1),
    "intermediate_size": st.sampled_from([8, 12]), "lru_width": st.sampled_from([None, 24]),
    "qk_dim_factor": st.sampled_from([0.5, 0.75]), "v_dim_factor": st.sampled_from([0.5, 1.0]),
    "ffn_proj_factor": st.sampled_from([2.667, 4.0]), "ffn_round_up_to_multiple_of": st.just(8),
    "vocab_size_per_layer_input": st.integers(1, 9), "global_head_dim": st.sampled_from([4, 8]),
    "num_global_key_value_heads": st.sampled_from([None, 1, 2]),
    "enable_moe_block": st.booleans(), "top_k_experts": st.integers(1, 2),
    "num_experts": st.integers(2, 4), "moe_intermediate_size": st.integers(1, 9),
    **dict.fromkeys(("mamba_d_ssm", "mamba_headdim"), st.none()), "rotary_dim": st.just(4),
    "attn_layer_period": st.just(6), "local_attention": st.sampled_from([None, 4, 5]),
    "attn_layer_offset": st.just(4), "mamba_dt_rank": st.integers(1, 3),
    "linear_num_key_heads": st.sampled_from([None, 2]),
    "linear_num_value_heads": st.sampled_from([None, 4]),
    "linear_key_head_dim": st.sampled_from([None, 5]),
    "linear_value_head_dim": st.sampled_from([None, 7]), "ffn_dim": st.sampled_from([8, 12]),
    **dict.fromkeys(("decoder_ffn_dim", "decoder_attention_heads"), st.none()),
    **dict.fromkeys(("encoder_ffn_dim", "encoder_attention_heads"), st.none()),
    **dict.fromkeys(("num_sparse_encoder_layers", "num_sparse_decoder_layers"), st.just(1)),
    **dict.fromkeys(("encoder_sparse_step", "decoder_sparse_step"), st.integers(1, 4)),
    "mlp_only_layers": st.none(),
    "interleave_moe_layer_step": st.integers(1, 4), "moe_layers": st.none(),
    **dict.fromkeys(("is_gated_act", "hybrid_layer_ids"), st.none()),
    "moe_layer_interval": st.integers(1, 3), "moe_layer_start_index": st.integers(0, 1),
    **dict.fromkeys(("expert_layer_period", "expert_layer_offset"), st.none()),
    "shared_intermediate_size": st.integers(1, 9),
    "mamba_ssm_cache_dtype": st.just("float32"),
    "no_rope_layers": st.none(), "no_rope_layer_interval": st.integers(1, 4),
    "attention_chunk_size": st.integers(1, 9),
}  # fmt: skip


OF_BART = {
    "BartForConditionalGeneration", "MBartForConditionalGeneration",
    "PegasusForConditionalGeneration", "MarianMTModel",
}  # fmt: skip
"""Classes of an encoder and a decoder that have keys of their own for the same sizes."""
LAYERS = {
    "Flint": ["full_attention", "sliding_attention"],
    "KimiLinear": ["full_attention", "linear_attention"],
    "Lfm2Moe": ["conv", "full_attention"],
    "MiniMax": ["full_attention", "linear_attention"],
    "Lfm3": ["conv", "full_attention", "sliding_attention"],
    "Zamba": ["linear_attention", "hybrid"],
    "Zamba2": ["linear_attention", "hybrid"],
}
"""Types of layers of the classes that do not repeat a pattern."""


@st.composite
def configs(draw, kind: str) -> dict:
    """A tiny config of a class."""
    translation = TRANSLATIONS[kind]
    config = {"model_type": translation.model_type, "pad_token_id": 0}
    for key in translation.defaults:
        meaning = translation.meaning(key)
        if "." in key:
            continue
        if isinstance(meaning, str) and key not in translation.inverse:
            config[key] = draw(SMALL.get(meaning, st.integers(1, 9)))
        elif isinstance(meaning, str) or meaning is None:
            config[key] = draw(COMPUTED[key])
        else:
            config[key] = draw(st.sampled_from([case.value for case in meaning]))
    if "is_gated_act" in config:
        config["is_gated_act"] = config["feed_forward_proj"].startswith("gated")
    if kind == "Mamba2ForCausalLM":
        config |= {"num_heads": 2 * config["hidden_size"] // config["head_dim"], "n_groups": 1}
    if kind.startswith(("Cwm", "Exaone", "Gemma3n", "Kolibri", "RecurrentGemma")):
        config["sliding_window"] = 3  # required
    if kind.startswith(("Bamba", "GraniteMoeHybrid", "FalconH1")):
        config["mamba_d_head"] = 2 * config["hidden_size"] // config["mamba_n_heads"]
    if kind == "GraniteMoeHybridForCausalLM" and draw(st.booleans()):
        config["num_local_experts"] = 0
    if kind == "HunYuanMoEV1ForCausalLM":
        config["moe_intermediate_size"] = draw(st.sampled_from([None, config["intermediate_size"]]))
    if kind.startswith(("Qwen3Next", "Qwen3_5")):
        config |= {"num_hidden_layers": 4, "linear_num_value_heads": 2}  # with attention in one
    if kind.startswith("Gemma3n"):
        config["num_hidden_layers"] = max(2, config["num_hidden_layers"])  # one has its own keys
    if kind == "JambaForCausalLM":
        for part in ("attn_layer", "expert_layer"):
            period = config[f"{part}_period"] = draw(st.integers(1, 6))
            config[f"{part}_offset"] = draw(st.integers(0, period - 1))
    if kind.startswith("RecurrentGemma"):
        config["num_hidden_layers"] = 5  # the last with attention
    if kind == "DbrxForCausalLM":
        config["attn_config"] = {"rope_theta": 5e5, "kv_n_heads": draw(SMALL["n_kv_head"])}
        sizes = {"ffn_hidden_size": st.integers(1, 9), "moe_num_experts": SMALL["n_expert"]}
        config["ffn_config"] = draw(st.fixed_dictionaries(sizes))
    if kind == "CohereCompassForCausalLM":
        config["rope_parameters"] = dict.fromkeys(LAYERS["Flint"], ROPE)
    if kind == "FlintForCausalLM":
        config["num_hidden_layers"] += 1  # two with a plain MLP
    if (allowed := LAYERS.get(kind.removesuffix("ForCausalLM"))) is not None:
        types, n = st.sampled_from(allowed), config["num_hidden_layers"]
        config["sliding_window"] = 3
        config["layer_types"] = draw(st.lists(types, min_size=n, max_size=n))
    if kind == "Gemma4ForCausalLM":
        types = st.lists(st.sampled_from(["sliding_attention", "full_attention"]), max_size=3)
        layers = [*draw(types), "full_attention", "full_attention"]  # before shared keys, and last
        config |= {"sliding_window": 3, "layer_types": layers, "num_hidden_layers": len(layers)}
    if kind.startswith("Zamba"):
        config["num_key_value_heads"] = config["num_attention_heads"]
        config["n_mamba_heads"] = 2 * draw(SMALL["n_mamba_group"])
        config["num_hidden_layers"] += 2
        config["layer_types"] += ["hybrid"] * 2  # the class refuses a single use of a shared block
        config["layers_block_type"] = config["layer_types"]
    if kind == "Zamba2ForCausalLM":
        inner = config["attention_hidden_size"] = 2 * config["hidden_size"]
        if config["use_shared_attention_adapter"]:  # others have no formula
            config["attention_head_dim"] = inner // config["num_attention_heads"]
        config["mamba_headdim"] = inner // config["n_mamba_heads"]
        types = config["layer_types"]
        config["hybrid_layer_ids"] = [i for i, name in enumerate(types) if name == "hybrid"]
    if kind == "DiffLlamaForCausalLM":
        config |= {"num_attention_heads": 4, "num_key_value_heads": 2}  # an even number
    if kind.startswith("NllbMoe"):
        for key in ("ffn_dim", "attention_heads", "sparse_step"):
            config[f"decoder_{key}"] = config[f"encoder_{key}"]
    if kind in OF_BART:
        for key in ("ffn_dim", "attention_heads"):
            config[f"encoder_{key}"] = config[f"decoder_{key}"]
    if kind.startswith("SwitchTransformers"):
        n = config["num_decoder_layers"] = config["num_layers"]
        n_sparse = draw(st.integers(1, n))
        config |= dict.fromkeys(
            ("num_sparse_encoder_layers", "num_sparse_decoder_layers"), n_sparse
        )
        config |= dict.fromkeys(("encoder_sparse_step", "decoder_sparse_step"), n // n_sparse)
    if kind == "OlmoHybridForCausalLM":
        both = ["full_attention", "linear_attention"]  # required
        layers = draw(st.permutations([*both, *draw(st.lists(st.sampled_from(both), max_size=3))]))
        config |= {"layer_types": layers, "num_hidden_layers": len(layers)}
    if kind == "NemotronHForCausalLM":
        types = st.sampled_from(["linear_attention", "full_attention", "mlp", "moe"])
        config["layer_types"] = draw(st.lists(types, min_size=1, max_size=6))
    if kind.startswith(("Olmoe", "Helium", "BitNet")):
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    if kind == "GPTNeoForCausalLM":
        config["attention_types"] = [[["global"], config["num_layers"]]]
    return config


@pytest.mark.parametrize("kind", TRANSLATIONS)
@given(st.data())
@settings(max_examples=examples(5))
def test_there_and_back(kind, data):
    """A tiny config and what it means: formula and class agree, and the way back loses nothing."""
    config = data.draw(configs(kind))
    family = families()[TRANSLATIONS[kind].family]
    a = resolved(family, fields_of(kind, config))
    there = sum(c.parameters for c in count(build(kind, config)).values())
    assert total(a.parameters(a)) - there == left_out(kind, a)
    again = fields_of(kind, {"model_type": config["model_type"]} | config_of(kind, a))
    assert resolved(family, again) == a
    found = witness(kind, class_config(kind, a))
    assert (found.parameters, found.refusal, found.failed) == (there, None, False)


@pytest.mark.parametrize(
    ("kind", "keys", "mlps"),
    [
        ("Qwen2Moe", {"mlp_only_layers": [0, 3]}, "mlp moe moe"),
        ("Qwen3Moe", {"mlp_only_layers": [1], "decoder_sparse_step": 2}, "mlp mlp mlp moe mlp moe"),
        ("Qwen3Next", {"mlp_only_layers": [0, 1]}, "moe"),
        ("Llama4", {"moe_layers": [0, 4], "interleave_moe_layer_step": 2}, "moe mlp mlp mlp"),
        ("Ernie4_5_Moe", {"moe_layer_start_index": 2, "moe_layer_interval": 2,
                          "moe_layer_end_index": 4}, "mlp mlp mlp moe"),
    ],
)  # fmt: skip
def test_layers_with_experts_by_number(kind, keys, mlps):
    """Of Llama 4 a list had no effect, the others were refused."""
    kind = f"{kind}ForCausalLM"
    sizes = {"model_type": TRANSLATIONS[kind].model_type, "num_hidden_layers": 6}
    sizes |= {"vocab_size": 40, "hidden_size": 32, "pad_token_id": 0, "rope_parameters": ROPE}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    fields = fields_of(kind, sizes | keys)
    assert fields["mlps"] == mlps
    a = resolved(families()["decoder"], fields)
    there = sum(c.parameters for c in count(build(kind, sizes | keys)).values())
    assert total(a.parameters(a)) == there


def resolved(family, fields: dict):
    from modelbudget.catalogue.named_models import Base
    from modelbudget.sweeps.derive import named_architecture

    return named_architecture(Base("", "", family, fields, {}))


def test_most_causal_classes_have_a_formula():
    """At their default config, which `test_a_file_as_its_own_class_writes_it` compares."""
    classes = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    found = [classes[config].__name__ in TRANSLATIONS for config in classes]
    assert len(found) == 189
    assert sum(found) >= 144


OF_PUBLISHED_FILES = [
    # The first config.json of K-EXAONE has it, its present one first_k_dense_replace.
    ({"model_type": "exaone_moe"}, {"first_last_k_dense_replace": 2}),
    # huggingface.co/google/gemma-2-9b: sliding_window again, which alone the class reads.
    ({"model_type": "gemma2"}, {"sliding_window_size": 4096}),
    # huggingface.co/decapoda-research/llama-7b-hf
    ({"model_type": "llama"}, {"architectures": ["LLaMAForCausalLM"]}),
    ({"model_type": "chatglm"}, {"attn_implementation": "sdpa"}),  # huggingface.co/THUDM/glm-4-9b
    ({"model_type": "qwen"}, {"tokenizer_type": "QWenTokenizer"}),  # huggingface.co/Qwen/Qwen-7B
    (  # huggingface.co/deepseek-ai/deepseek-vl2-small
        {"model_type": "deepseek_v2", "num_experts_per_tok": 6},
        {"lm_head": True, "rm_head": False, "use_mla": True},
    ),
]


@pytest.mark.parametrize(("config", "keys"), OF_PUBLISHED_FILES)
def test_keys_of_published_files_that_change_nothing(from_config, config, keys):
    points = [from_config(config | more).points for more in ({}, keys)]
    assert points[0][0].architecture == points[1][0].architecture


WITHOUT_ROPE = [
    ("Llama4", {}, "sliding_attention sliding_attention sliding_attention nope_attention", 8192),
    (
        "Llama4",
        {"attention_chunk_size": 5, "no_rope_layers": [1, 0] * 24},
        "sliding_attention nope_attention",
        5,
    ),
    ("Llama4", {"no_rope_layers": [0] * 48}, "nope_attention", 0),
    ("SmolLM3", {"no_rope_layer_interval": 2}, "attention nope_attention", 0),
    (
        "SmolLM3",
        {"layer_types": ["full_attention"] * 36, "no_rope_layers": [1, 1, 0] * 12},
        "attention attention nope_attention",
        0,
    ),
    ("Cohere2", {}, "sliding_attention sliding_attention sliding_attention nope_attention", 4096),
    ("Cohere2", {"sliding_window_pattern": 2}, "sliding_attention nope_attention", 4096),
    ("Cohere2Moe", {"sliding_window_pattern": 2}, "sliding_attention nope_attention", 4096),
    ("Exaone4", {"sliding_window_pattern": 2}, "sliding_attention nope_attention", 4096),
    ("Afmoe", {"global_attn_every_n_layers": 2}, "sliding_attention nope_attention", 1024),
    ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 32}, "attention", 0),
    (
        "Exaone4",
        {"layer_types": [*["sliding_attention"] * 3, "full_attention"] * 8},
        "sliding_attention sliding_attention sliding_attention nope_attention",
        4096,
    ),
]


@pytest.mark.parametrize(("kind", "keys", "mixers", "window"), WITHOUT_ROPE)
def test_layers_without_rope(kind, keys, mixers, window):
    """Modeling files of transformers: `use_rope`, and `sliding_window is None or is_sliding`."""
    a = resolved(families()["decoder"], fields_of(f"{kind}ForCausalLM", keys))
    assert (a.mixers, a.window, a.position) == (mixers, window, "rotary")
    assert a.window_in_chunks == (kind == "Llama4" and window > 0)


def test_latents_without_rope():
    """modeling_kimi_linear.py has no rotary embedding."""
    assert fields_of("KimiLinearForCausalLM", {})["position"] == "none"


def test_a_window_of_a_layer_without_rope_is_refused():
    keys = {"layer_types": ["chunked_attention"] * 48, "no_rope_layers": [1, 0] * 24}
    with pytest.raises(ValueError, match="no_rope_layers: 0 in a layer of sliding_attention"):
        fields_of("Llama4ForCausalLM", keys)


ITS_OWN = ["full_attention", "sliding_attention", "sliding_attention"] * 3
IN_TURN = ["linear_attention", "full_attention"] * 24
WINDOWS = [
    ("Mistral", {}, "sliding_attention", 4096),
    ("Mistral", {"sliding_window": None}, "attention", 0),
    ("Gemma2", {"sliding_window": 7}, "sliding_attention attention", 7),
    ("GptOss", {}, "sliding_attention attention", 128),
    (
        "Gemma3",
        {"layer_types": ITS_OWN, "sliding_window": 9},
        "attention sliding_attention sliding_attention",
        9,
    ),
    ("Gemma3", {"layer_types": ["full_attention"] * 9}, "attention", 0),
    (
        "Gemma3",
        {"sliding_window_pattern": 2, "sliding_window": 7},
        "sliding_attention attention",
        7,
    ),
    ("Gemma3", {"sliding_window_pattern": 2, "sliding_window": None}, "attention", 0),
    ("Qwen3Next", {}, "gated_deltanet gated_deltanet gated_deltanet attention", 0),
    ("Qwen3Next", {"layer_types": IN_TURN}, "gated_deltanet attention", 0),
]


@pytest.mark.parametrize(("kind", "config", "mixers", "window"), WINDOWS)
def test_a_file_says_which_layers_see_a_window(kind, config, mixers, window):
    a = resolved(families()["decoder"], fields_of(f"{kind}ForCausalLM", config))
    assert (a.mixers, a.window) == (mixers, window)


def test_a_layer_of_another_type_is_refused():
    config = {"layer_types": ["full_attention", "chunked_attention"]}
    with pytest.raises(ValueError, match="layer_types = 'chunked_attention': not supported"):
        fields_of("GptOssForCausalLM", config)
    with pytest.raises(ValueError, match="layer_types = 3: must be a list"):
        fields_of("GptOssForCausalLM", {"layer_types": 3})


OVERRIDES = [
    ({"1": {"head_dim": 64}}, 64),
    ({"01": {"head_dim": 64, "num_key_value_heads": 4}}, 64),
    ({"1": {"num_key_value_heads": 4}}, 256),
    ({}, 256),
    (None, 256),
]
NOT_OVERRIDES = [
    {"0": {"head_dim": 64}},
    {"1": {"head_dim": 64}, "0": {"head_dim": 64}},
    {"1": {"hidden_size": 64}},
    {"full_attention": {"head_dim": 64}},
    [64],
]


@pytest.mark.parametrize(("overrides", "d_head"), OVERRIDES)
def test_sizes_of_layers_of_full_attention(overrides, d_head):
    types = ["sliding_attention", "full_attention"]
    config = {"num_hidden_layers": 2, "layer_types": types, "per_layer_config": overrides}
    fields = fields_of("Gemma4ForCausalLM", config)
    assert (fields["d_head"], fields["d_full_head"]) == (256, d_head)


@pytest.mark.parametrize("overrides", NOT_OVERRIDES)
def test_other_sizes_of_single_layers_have_no_formula(overrides):
    types = ["sliding_attention", "full_attention"]
    config = {"num_hidden_layers": 2, "layer_types": types, "per_layer_config": overrides}
    with pytest.raises(NoFormulaError, match=r"per_layer_config = .*: not supported"):
        fields_of("Gemma4ForCausalLM", config)


def test_a_list_with_a_size_of_each_layer():
    same, differing = ({"intermediate_size": [n, 64], "num_hidden_layers": 2} for n in (64, 32))
    assert fields_of("Gemma3nForCausalLM", same)["d_ff"] == 64
    with pytest.raises(NoFormulaError, match=r"intermediate_size = \[32, 64\]: not supported"):
        fields_of("Gemma3nForCausalLM", differing)


def test_a_sweep_varies_a_config(from_config):
    expanded = from_config(
        LLAMA, "base: config.json\ngrid: {n_layer: [1, 3], tied: [true, false], n_vocab: [100, 90]}"
    )
    table = compared(expanded)
    assert verdict(table)["agreed"] == table.height
    for point, one in zip(expanded.points, classes_of(points_table(expanded.points)), strict=True):
        a = point.architecture
        assert witness(one.class_name, one.config).parameters == total(a.parameters(a))
        assert one.config["rms_norm_eps"] == LLAMA["rms_norm_eps"]


def test_a_class_that_cannot_be_the_architecture_says_so(from_config):
    expanded = from_config(LLAMA, "points: [{base: config.json, gated: false}]")
    (refused,) = classes_of(points_table(expanded.points))
    assert refused.config is None
    assert "gated = false (there: true)" in refused.refusal


def test_a_class_without_a_formula_is_measured_and_not_compared(from_config):
    expanded = from_config(XLNET, "points: [{base: config.json}, {base: config.json, n_layer: 5}]")
    assert [p.architecture.name() for p in expanded.points] == ["hugging-face"] * 2
    table = compared(expanded)
    assert table["predicted"].is_null().all()
    assert table["agrees"].is_null().all()
    assert set(table["method"]) == {"meta"}
    assert verdict(table) == {
        "points": 2,
        "compared": 0,
        "agreed": 0,
        "of_class": 0,
        "of_class_agreed": 0,
        "near": 0,
        "points_without_formula": 2,
        "points_failed": 0,
    }
    # In every layer: five d × d matrices (q, k, v, o, r), three biases and a pair of segments of
    # d, an MLP of 48 with its biases, two norms. The words are tied, with a bias; one mask of d.
    layer = 5 * 32 * 32 + 3 * 32 + 2 * 32 + 2 * 32 * 48 + 48 + 32 + 2 * 2 * 32
    sums = table.group_by("point").agg(pl.col("measured").sum()).sort("point")
    assert sums["measured"].to_list() == [100 * 32 + 100 + 32 + n * layer for n in (2, 5)]


def test_a_head_without_a_formula_is_no_formula(from_config):
    (point,) = from_config(LLAMA | {"architectures": ["LlamaForSequenceClassification"]}).points
    assert point.architecture.kind == "LlamaForSequenceClassification"
    assert point.transformers is None


def test_without_architectures_the_model_type_decides(from_config):
    (point,) = from_config({k: v for k, v in LLAMA.items() if k != "architectures"}).points
    assert point.transformers == "LlamaForCausalLM"
    (point,) = from_config({k: v for k, v in XLNET.items() if k != "architectures"}).points
    assert point.architecture.kind == "XLNetLMHeadModel"
    (point,) = from_config({"model_type": "distilbert"}).points
    assert point.architecture.kind == "DistilBertForMaskedLM"


@pytest.mark.parametrize("config", [LLAMA, XLNET])
def test_remote_code_is_never_run_and_nothing_fetched(from_config, tmp_path, monkeypatch, config):
    """`auto_map` names a file that would leave a trace; a socket would too."""
    trace = tmp_path / "trace"
    code = f"import pathlib\npathlib.Path({str(trace)!r}).touch()\n"
    (tmp_path / "modeling_evil.py").write_text(code)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: trace.touch())
    evil = {"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "modeling_evil.Evil"}
    expanded = from_config(config | {"auto_map": evil, "trust_remote_code": True})
    compared(expanded)
    assert "auto_map" not in str(expanded.points[0].architecture)
    assert not trace.exists()


def without(config: dict, *keys: str) -> dict:
    return {key: value for key, value in config.items() if key not in keys}


BAD = {
    "no model_type": (without(LLAMA, "model_type"), ["model_type: missing", "llama"]),
    "unknown model_type": (
        LLAMA | {"model_type": "lama"},
        ["model_type = 'lama'", "did you mean", "allowed"],
    ),
    "a model_type with unlike layers": (
        LLAMA | {"model_type": "nemotron-nas", "auto_map": {"AutoModel": "x.Y"}},
        ["model_type = 'nemotron-nas'", "never run", "differ from each other", "llama-3.3-70b"],
    ),
    "null next to a size": (
        {"model_type": "gpt2", "n_embd": 32, "hidden_size": None},
        ["n_embd = 32 and hidden_size = null contradict"],
    ),
    "a model_type of a model page": (
        LLAMA | {"model_type": "my-own", "auto_map": {"AutoModel": "x.Y"}},
        ["model_type = 'my-own'", "auto_map", "never run"],
    ),
    "unknown key": (
        LLAMA | {"num_layers": 3},
        ["num_layers = 3: unknown key", "did you mean num_hidden_layers?", "allowed"],
    ),
    "word for a size": (LLAMA | {"hidden_size": "big"}, ["hidden_size = 'big'", "whole number"]),
    "number for a switch": (
        LLAMA | {"tie_word_embeddings": 1},
        ["tie_word_embeddings = 1", "allowed: false, true"],
    ),
    "activation": (LLAMA | {"hidden_act": "tahn"}, ["hidden_act = 'tahn'", "'silu'"]),
    "heads that do not divide": (
        LLAMA | {"num_attention_heads": 5},
        ["d_head = 6.4", "d_head is head_dim"],
    ),
    "class of another model_type": (
        XLNET | {"architectures": ["GPT2LMHeadModel"]},
        ["GPT2LMHeadModel", "'xlnet'", "contradict"],
    ),
    "class that is none": (
        LLAMA | {"architectures": ["pipeline"]},
        ["architectures[0] = 'pipeline'", "not a model class", "(allowed: LlamaForCausalLM, Lla"],
    ),
    "class of a model page": (
        {"model_type": "internlm2", "architectures": ["InternLM2ForRewardModel"]},
        ["architectures[0] = 'InternLM2ForRewardModel'", "(allowed: InternLM2ForCausalLM)"],
    ),
    "architectures that is no list": (LLAMA | {"architectures": "x"}, ["architectures = 'x'"]),
    "10^18 layers": (
        LLAMA | {"num_hidden_layers": 10**18},
        ["n_layer = 1000000000000000000: must be at most 10,000", "num_hidden_layers"],
    ),
    "10^18 layers without a formula": (
        XLNET | {"n_layer": 10**18},
        ["n_layer = 1000000000000000000", "at most 10,000"],
    ),
    "10^18 wide without a formula": (XLNET | {"d_model": 10**18}, ["d_model", "at most 16,777,"]),
    "text in the place of keys": (
        {"model_type": "dbrx", "ffn_config": {"ffn_act_fn": "silu"}},
        ["ffn_config.ffn_act_fn = 'silu': must be keys with values"],
    ),
    "what the class itself rejects": (XLNET | {"n_layer": "two"}, ["XLNetLMHeadModel", "n_layer"]),
    "not JSON": ("{", ["not readable as UTF-8 JSON"]),
    "key twice": ('{"model_type": "llama", "model_type": "gpt2"}', ["duplicate key 'model_type'"]),
    "no mapping": ("[]", ["holds a list, allowed: keys with values"]),
}


@pytest.mark.parametrize(("config", "fragments"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_in_one_line(from_config, config, fragments):
    with pytest.raises(InputError) as refusal:
        from_config(config)
    (line,) = refusal.value.mistakes
    for fragment in ["sweep.yaml", "config.json", *fragments]:
        assert fragment in line


@pytest.mark.parametrize(
    "config",
    [
        LLAMA | {"hidden_size": -64},
        XLNET | {"d_model": -64},
        *(BAD[name][0] for name in ("unknown model_type", "a model_type of a model page")),
        *(BAD[name][0] for name in ("class that is none", "10^18 wide without a formula")),
    ],
)
def test_a_message_comes_before_transformers_is_imported(from_config, monkeypatch, config):
    monkeypatch.setattr(bounded_check, "ask", lambda question, _: pytest.fail(question))
    with pytest.raises(InputError):
        from_config(config)


def test_tables_in_the_code_of_transformers_are_those_of_the_package():
    assert {*class_code._tables()[0]} == {*transformers.CONFIG_MAPPING.keys()}
    for model_type in ("xlnet", "mistral", "bart"):
        config = transformers.CONFIG_MAPPING[model_type]
        classes = class_code.classes_of(model_type)
        for table in (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_MAPPING):
            assert table[config].__name__ in classes


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"model_type": "deepseek_v3", "attention_bias": True}, "attention_bias = true"),
        ({"model_type": "jamba", "mamba_proj_bias": True}, "mamba_proj_bias = true"),
    ],
)
def test_values_that_no_formula_covers_are_measured(from_config, config, line):
    expanded = from_config(config)
    assert [p.architecture.name() for p in expanded.points] == ["hugging-face"]
    (note,) = (note for note in expanded.notes if line in note)
    assert "not supported (allowed: " in note
    assert "measured without a formula" in note


GREEDY = XLNET | {"num_labels": 10**9}
"""The class makes a name for each label."""


def test_a_config_that_fills_the_memory_is_refused_elsewhere(from_config, monkeypatch):
    """The process that reads it stays as it is, and the next file is checked as usual."""
    assert bounded_check.BOUND == (1_073_741_824, "the check of a config.json")
    scarce = Bound(2**27, bounded_check.BOUND[1])  # a gigabyte takes seconds to fill
    helper = Helper(bounded_check._answer, bounded_check.TIMEOUT_S, scarce)
    monkeypatch.setattr(bounded_check, "_helper", lambda _: helper)
    before = psutil.Process().memory_info().data
    with pytest.raises(InputError) as refusal:
        from_config(GREEDY)
    (line,) = refusal.value.mistakes
    assert "config.json: its config cannot be built" in line
    assert "needs more than 134,217,728 bytes, the limit for the check of a config.json" in line
    assert psutil.Process().memory_info().data - before < 2**25
    assert len(from_config(XLNET).points) == 1
    helper.end()


def test_a_config_that_takes_for_ever_is_refused(from_config, monkeypatch):
    helper = Helper(lambda _: time.sleep(600), 0.5, Bound(*bounded_check.BOUND))
    monkeypatch.setattr(bounded_check, "_helper", lambda _: helper)
    with pytest.raises(InputError, match=r"config.json: .*no answer within 0.5 s"):
        from_config(XLNET)


def test_an_interrupted_check_leaves_no_answer_for_the_next():
    """As Ctrl-C in a notebook: the next config.json would get the answer about the one before."""
    helper = Helper(lambda seconds: time.sleep(seconds) or seconds, 20, Bound(*bounded_check.BOUND))
    try:
        assert helper(0) == 0
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            helper(0.4)
        assert helper(0) == 0
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        helper.end()


def test_one_process_checks_all_points(from_config, monkeypatch):
    """Each starts with an import that takes seconds."""
    started = []
    start = workers._Worker.__init__
    monkeypatch.setattr(
        workers._Worker, "__init__", lambda *args: (started.append(1), start(*args))[1]
    )
    bounded_check.end()
    sizes = "{from: 11, to: 110, steps: 100}"
    assert len(from_config(XLNET, f"base: config.json\ngrid: {{n_layer: {sizes}}}").points) == 100
    assert len(started) == 1


def test_a_model_that_fills_the_memory_of_a_worker_is_lost_alone(from_config, monkeypatch):
    """Jobs rebuild records without checking them."""
    points = from_config(XLNET).points
    greedy = points[0].architecture.model_copy(update={"config": json.dumps(GREEDY)})
    monkeypatch.setattr(measure_in_processes, "OBJECTS_BYTES", 2**28)
    scarce = ON_META.model_copy(update={"memory_share": 1e-9})
    models = [(greedy, points[0].run), (points[0].architecture, points[0].run)]
    lost, there = measure_all(models, scarce, 1)
    assert lost.missing["parameters"].startswith("MemoryError: needs more than 268,435,4")
    assert "one model (memory_share of " in lost.missing["parameters"]
    assert there.values["parameters"]


def test_all_mistakes_of_a_file_at_once(from_config):
    with pytest.raises(InputError) as refusal:
        from_config(LLAMA | {"hidden_size": "x", "hidden_act": "y", "n_layers": 1})
    assert len(refusal.value.mistakes) == 3


def test_a_file_that_is_not_there(sweep):
    with pytest.raises(InputError, match=r"nowhere\.json: no such file"):
        sweep("base: nowhere.json\ngrid: {n_layer: [1]}")
