"""Adapters against PEFT: trained parameters, and traced steps of classes that it wraps."""

import json
import re
from contextlib import nullcontext

import peft
import pytest
import torch
from helpers.peft_classes import architecture_of, config_of, run_of, wrapped
from helpers.small_classes import SMALL
from helpers.tiers import ALL, examples
from hypothesis import given, settings
from hypothesis import strategies as st

import modelbudget as mb
from modelbudget.architecture.adapter_methods import OF_LAYERS, OF_MODEL, method_of
from modelbudget.architecture.run_adapter import BITSANDBYTES
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Term, of_model
from modelbudget.components.decoder.decoder_program import program
from modelbudget.huggingface.offline import transformers
from modelbudget.measurement.reference.class_run import class_run
from modelbudget.measurement.reference.class_trace import trace_class
from modelbudget.measurement.step.train import train
from modelbudget.predict.prediction_or_reason import predicted
from modelbudget.quantities.training_step import declared, training_step
from modelbudget.sweeps.compared import not_compared

NOT_ON_META = ("shira", "boft")
"""Methods that PEFT makes only with storage."""
NOT_OF_EXPERTS = ("dora", "lora_fa")
SIZES = {"adapter_rank": 4, "adapter_frequencies": 50, "virtual_tokens": 5}
OF_STEP = {"activation_bytes", "gradient_bytes", "optimizer_bytes", "peak_training_bytes"}
DECODERS = [kind for kind in SMALL if kind not in ("MixtralForCausalLM", "GPT2LMHeadModel")]


@pytest.mark.parametrize("kind", SMALL)
def test_peft_trains_as_many_parameters(kind):
    """Only here: the shapes of methods that have no program, against PEFT's modules."""
    a, n_compared = architecture_of(kind), 0
    for method in (*OF_LAYERS, *OF_MODEL):
        run = run_of(kind, adapter=method, adapter_block=2 if method == "lokr" else 8, **SIZES)
        if method in NOT_ON_META or (
            kind == "MixtralForCausalLM" and method in ("dora", "lora_fa")
        ):
            continue
        try:
            model = wrapped(kind, run)
        except (TypeError, ValueError) as refusal:
            if "Conv1D" not in str(refusal):  # GPT-2's layers, which few methods take
                raise
            continue
        frozen = method_of(method).frozen
        of_peft = sum(
            p.numel()
            for path, p in model.named_parameters()
            if p.requires_grad and not any(name in path for name in frozen)
        )
        step = declared(program, a, run)
        assert sum(step.gradient_bytes.values()) == 4 * of_peft, method
        n_compared += 1
    assert n_compared >= (12 if kind == "GPT2LMHeadModel" else 20)


@pytest.mark.parametrize("kind", DECODERS if ALL else DECODERS[:3])
@pytest.mark.parametrize(
    "fields",
    [
        {"adapter": "lora"},
        {"adapter": "lora", "adapter_dtype": "dtype", "adapter_dropout": True},
        {"adapter": "lora", "recompute": "full", "input_gradient": True},
        {"adapter": "lora", "recompute": "full", "input_gradient": True, "adapter_dropout": True,
         "adapter_dtype": "dtype"},
        {"adapter": "dora"},
        {"adapter": "loha"},
        {"adapter": "ia3"},
    ],
)  # fmt: skip
def test_a_step_of_the_class_that_peft_wraps_is_the_programs(kind, fields):
    """Saved bytes, gradients, states and the peak of each phase, with the settings of the class."""
    check_step(kind, fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "float32", "n_microbatch": 2},
        {"recompute": "full", "input_gradient": True},
        {"adapter_dtype": "dtype"},
    ],
)
def test_a_step_with_adapters_of_stacked_experts_is_the_programs(fields, monkeypatch):
    """The witness of PEFT's `ParamWrapper`, whose sums of weights and products are parametrized.

    On meta there is no autocast, which it turns off around a sum.
    """
    monkeypatch.setattr(torch, "autocast", lambda **_: nullcontext())
    check_step("MixtralForCausalLM", {"adapter": "lora", **fields})


LAST = [name for name in OF_LAYERS if method_of(name).forward][7:]
"""Methods that are not above, each at one class, in turn."""


@pytest.mark.parametrize(
    ("kind", "method"), [(DECODERS[i % len(DECODERS)], name) for i, name in enumerate(LAST)]
)
def test_a_step_of_another_method_is_the_programs(kind, method):
    check_step(kind, {"adapter": method, "adapter_block": 4, "adapter_frequencies": 50})


@st.composite
def steps(draw) -> dict:
    """Draw a step with an adapter with which formulas answer for a class."""
    fields: dict = {
        "batch": draw(st.sampled_from([2, 4])),
        "length": draw(st.sampled_from([3, 8, 40, 100])),
        "n_microbatch": draw(st.sampled_from([1, 2])),
        "dtype": draw(st.sampled_from(["float32", "bfloat16", "float16"])),
        "adapter": draw(st.sampled_from(["lora", *ANSWERED])),
        "adapter_rank": draw(st.sampled_from([1, 8, 32])),
        "adapter_targets": draw(st.sampled_from(["all-linear", "query value", "gate up", "down"])),
        "adapter_dtype": draw(st.sampled_from(["float32", "dtype"])),
        "recompute": draw(st.sampled_from(["none", "full"])),
        "weights": draw(st.sampled_from(["dtype", *BITSANDBYTES.split()])),
    }
    names = "foreach", "adapter_dropout", "dropout", "input_gradient"
    fields |= {name: draw(st.booleans()) for name in names}
    if fields["weights"] == "dtype" and draw(st.booleans()):
        fields["autocast"] = "bfloat16" if fields["dtype"] == "float32" else fields["dtype"]
    return fields


ANSWERED = ("rslora", "lora_fa", "dora", "vera", "loha", "ia3")


@pytest.mark.parametrize("kind", DECODERS)
@settings(max_examples=examples(3), deadline=None)
@given(fields=steps())
def test_a_formula_that_answers_for_a_class_with_an_adapter_is_its_trace(kind, fields):
    """Every quantity that is declared as compared, of all methods, with the settings of the class.

    Only here: FLOPs, autocast, microbatches and quantised weights of a class with an adapter.
    """
    run, a = run_of(kind, **fields), architecture_of(kind)
    of_class = class_run(kind, run)
    if run.recompute == "full" and not run.input_gradient:
        assert not_compared("activation_bytes", kind, SMALL[kind], a, run)
        # The class lets the embedding's output require a gradient in any case.
        run = run.model_copy(update={"input_gradient": True})
    compared = {
        quantity
        for quantity in (*OF_STEP, *FLOPS)
        if not not_compared(quantity, kind, SMALL[kind], a, run)
    }
    if not compared:
        assert kind == "Phi3ForCausalLM"  # which has no layer of query, key, value, gate or up
        return
    traced = trace_class(kind, SMALL[kind], of_class, compared)
    for quantity, values in traced.values.items():
        terms = {name: Term(value) for name, value in values.items()}
        assert of_model(quantity, predicted(quantity, a, run)) == of_model(quantity, terms)
    assert not traced.missing


def test_a_buffer_stays_as_it_is_where_peft_casts_parameters():
    """Only here: the scale of Gemma's embedding, after prepare_model_for_kbit_training."""
    kind, prepared = "Gemma2ForCausalLM", {"prepare_for_kbit_training": True, "recompute": "full"}
    fields = {"adapter": "lora", "dtype": "bfloat16", "weights": "bnb-4bit", "input_gradient": True}
    run = run_of(kind, **fields, **prepared, attention_kernel="written_out")
    traced = trace_class(kind, SMALL[kind], class_run(kind, run), {"peak_training_bytes"})
    of_formula = predicted("peak_training_bytes", architecture_of(kind), run)
    assert {phase: term.total for phase, term in of_formula.items()} == traced.values[
        "peak_training_bytes"
    ]


FLOPS = ("flops_forward", "flops_backward")


def check_step(kind, fields):
    from peft.tuners._buffer_dict import BufferDict

    run = run_of(kind, adapter_rank=2, **fields)
    step = training_step(program, architecture_of(kind), run)
    shares = run.adapter in ("vera", "pvera")
    model = wrapped(kind, run.model_copy(update={"recompute": "none"}), injected=not shares)
    model = getattr(model, "base_model", model).model if shares else model
    for part in model.modules():
        if isinstance(part, BufferDict):  # what it holds is no activation, as no parameter is
            for name, buffer in part.items():
                held = torch.nn.Parameter(buffer, requires_grad=False)
                part.register_buffer(name, held)
                vars(part)["_parameters"][name] = held
    off = {"adapter": "none", "input_gradient": False}
    values = train(model, run.model_copy(update=off), OF_STEP)
    assert step.peaks == values["peak_training_bytes"]
    assert sum(step.saved.values()) == sum(values["activation_bytes"].values())
    for name in ("gradient_bytes", "optimizer_bytes"):
        assert sum(getattr(step, name).values()) == sum(values[name].values())


def test_modules_have_the_names_that_a_config_of_peft_has():
    fields = {"adapter_targets": "q_proj,gate_proj", "modules_to_save": "embed_tokens, lm_head"}
    run = RunConfig.model_validate({"adapter": "lora"} | fields)
    assert (run.adapter_targets, run.modules_to_save) == ("query gate", "embedding head")
    with pytest.raises(ValueError, match="separated by spaces; allowed: none, embedding, head"):
        RunConfig.model_validate({"adapter": "lora", "modules_to_save": "wte"})
    with pytest.raises(ValueError, match="all-but-experts; unknown: foo"):
        RunConfig.model_validate({"adapter": "lora", "adapter_targets": "q_proj,foo"})
    with pytest.raises(ValueError, match="c_proj: write `output down` with GPT-2, `down` with"):
        RunConfig.model_validate({"adapter": "lora", "adapter_targets": "c_attn,c_proj"})


PEFT_TABLE = [
    # Numbers of trained parameters that huggingface/peft's method_comparison/MetaMathQA/results has
    # for Llama 3.2 3B at 5d602fdb, all at query and value unless another target is given.
    ({"adapter": "lora", "adapter_rank": 32}, 9_175_040),
    ({"adapter": "lora_fa", "adapter_rank": 32}, 3_670_016),
    ({"adapter": "lora", "adapter_rank": 10, "adapter_targets": "gate up down"}, 9_461_760),
    ({"adapter": "vera", "adapter_rank": 256}, 129_024),
    ({"adapter": "pvera", "adapter_rank": 64}, 121_856),
    ({"adapter": "loha", "adapter_rank": 32}, 18_350_080),
    ({"adapter": "lokr", "adapter_rank": 32, "adapter_block": 4}, 2_294_656),
    (
        {"adapter": "lora", "adapter_rank": 10, "adapter_targets": "gate_proj,up_proj, down_proj"},
        9_461_760,
    ),
    ({"adapter": "ia3", "adapter_targets": "key value down"}, 286_720),
    ({"adapter": "boft", "adapter_block": 4}, 802_816),
    ({"adapter": "c3a", "adapter_block": 64}, 5_505_024),
    ({"adapter": "miss", "adapter_rank": 64}, 7_340_032),
    ({"adapter": "hira", "adapter_rank": 32}, 9_175_040),
    ({"adapter": "delora", "adapter_rank": 32}, 9_175_096),
    ({"adapter": "shira", "adapter_rank": 32}, 9_175_040),
    ({"adapter": "fourierft", "adapter_frequencies": 1000}, 56_000),
    ({"adapter": "fourierft", "adapter_frequencies": 5000}, 280_000),
    ({"adapter": "waveft", "adapter_frequencies": 5000}, 280_000),
    ({"adapter": "prompt", "virtual_tokens": 200}, 614_400),
    ({"adapter": "prefix", "virtual_tokens": 200}, 11_468_800),
    ({"adapter": "prefix", "virtual_tokens": 50}, 2_867_200),
    ({"adapter": "p_tuning", "virtual_tokens": 20}, 28_382_208),
    ({"trained": "norms", "dtype": "float32"}, 175_104),
]


@pytest.mark.parametrize(("run", "trained"), PEFT_TABLE)
def test_numbers_of_pefts_own_comparison(run, trained):
    given = {"adapter_targets": "query value"} if "adapter" in run else {}
    found = mb.model("llama-3.2-3b").predict("gradient_bytes", given | run)
    assert found.total == 4 * trained


@pytest.mark.parametrize(
    ("model", "trained"),
    [("llama-2-7b", 4_194_304), ("llama-2-13b", 6_553_600)],
)
def test_numbers_of_litgpts_table(model, trained):
    """Query and value at rank 8 (Lightning-AI/litgpt, tutorials/resource-tables.md, 26857050)."""
    run = {"adapter": "lora", "adapter_targets": "query value"}
    assert mb.model(model).predict("gradient_bytes", run).total == 4 * trained


@pytest.mark.parametrize(
    ("run", "n_bytes"),
    [
        # file_size of the same runs of PEFT's comparison.
        ({"adapter": "lora", "adapter_rank": 32}, 36_715_216),
        ({"adapter": "lora", "adapter_rank": 10, "adapter_targets": "gate up down"}, 37_868_984),
        ({"adapter": "loha", "adapter_rank": 32}, 73_429_560),
        ({"adapter": "ia3", "adapter_targets": "key value down"}, 1_157_064),
        ({"adapter": "miss", "adapter_rank": 64}, 29_367_496),
        ({"adapter": "boft", "adapter_block": 4}, 3_225_360),
        ({"adapter": "hira", "adapter_rank": 32}, 36_714_432),
        ({"adapter": "c3a", "adapter_block": 64}, 22_027_512),
        ({"adapter": "lokr", "adapter_rank": 32, "adapter_block": 4}, 9_199_776),
    ],
)
def test_files_of_adapters_to_the_byte(run, n_bytes):
    """Only here: the header of a file, whose names are those of the class."""
    given = {"adapter_targets": "query value", **run}
    assert mb.model("llama-3.2-3b").adapter_file(given) == n_bytes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["lora", "adalora", "oft", "shira", "c3a"])
def test_a_file_has_the_bytes_that_peft_saves(method, tmp_path):
    """Only here: AdaLoRA's counter is not saved, SHiRA's places are, OFT's blocks are a layer.

    C3A's kernel has the dtype of the layer, which PEFT leaves float32 on meta.
    """
    kind, keys = "LlamaForCausalLM", SMALL["LlamaForCausalLM"] | {"num_hidden_layers": 11}
    (tmp_path / "config.json").write_text(json.dumps(keys | {"model_type": "llama"}))
    fields = {"dtype": "bfloat16", "adapter": method, "adapter_rank": 2, "adapter_block": 4,
              "adapter_targets": "query down", "adapter_dtype": "dtype"}  # fmt: skip
    given = mb.model(tmp_path, implementation="modelbudget")
    model = getattr(transformers, kind)(transformers.LlamaConfig(**keys)).bfloat16()
    config = config_of(given.run(fields), model)
    peft.get_peft_model(model, config, autocast_adapter_dtype=False).save_pretrained(tmp_path)
    size = (tmp_path / "adapter_model.safetensors").stat().st_size
    assert given.adapter_file(fields) == size


def test_a_file_whose_names_are_not_known_is_refused():
    with pytest.raises(mb.InputError, match="lokr: needs d_in % block == 0"):
        mb.model("llama-3.2-3b").adapter_file({"adapter": "lokr", "adapter_block": 7})
    with pytest.raises(mb.InputError, match="GPT2LMHeadModel: the names in its file are not known"):
        mb.model("gpt-2-124m").adapter_file({"adapter": "lora"})
    saved = {"adapter": "lora", "modules_to_save": "lm_head"}
    with pytest.raises(mb.InputError, match=r"modules_to_save = head: .* allowed: none"):
        mb.model("llama-3.2-1b").adapter_file(saved)
    with pytest.raises(mb.InputError, match="adapter = none: has no file; allowed: lora"):
        mb.model("llama-3.2-3b").adapter_file({})


def test_lora_saves_more_than_full_fine_tuning():
    """As docs/how-to/fine-tune.md says: float32 copies of inputs outweigh what is frozen."""
    model, step = mb.model("llama-3-8b"), {"batch": 1, "length": 2048}
    full, lora, half = (
        model.predict("activation_bytes", step | run).total
        for run in ({}, {"adapter": "lora"}, {"adapter": "lora", "adapter_dtype": "dtype"})
    )
    assert half < full < lora / 1.5


OF_CLASSES = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
REACHED = {
    "DeepseekV2ForCausalLM": {
        "moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_shared_experts": 2, "first_k_dense_replace": 1, "num_key_value_heads": 4,
        "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
        "v_head_dim": 8, "topk_method": "greedy",
    },
    "HunYuanMoEV1ForCausalLM": {"num_experts": 4, "moe_topk": 2, "head_dim": 8},
    "MixtralForCausalLM": EXPERTS,
    "Qwen3MoeForCausalLM": EXPERTS | {"moe_intermediate_size": 24, "decoder_sparse_step": 2},
}  # fmt: skip
"""Classes whose stacked experts all-linear reaches, with dense layers or shared experts."""
OTHERWISE = REACHED | {
    "AfmoeForCausalLM": EXPERTS | {"moe_intermediate_size": 24, "num_dense_layers": 1},
    "BloomForCausalLM": {"n_layer": 2, "n_head": 4},
    "DbrxForCausalLM": {
        "d_model": 32, "n_layers": 2, "n_heads": 4,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "FalconForCausalLM": {"new_decoder_architecture": False},
    "GPTNeoXForCausalLM": {},
    "Glm4ForCausalLM": {"head_dim": 8},
    "GptOssForCausalLM": EXPERTS | {"head_dim": 8},
    "GraniteMoeSharedForCausalLM": {
        "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 56,
    },
    "ModernBertDecoderForCausalLM": {},
    "MoshiForCausalLM": {"ffn_dim": 40, "head_dim": 8},
    "MptForCausalLM": {"d_model": 32, "n_layers": 2, "n_heads": 4},
    "OlmoHybridForCausalLM": {
        "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "OpenAIGPTLMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "Phi3ForCausalLM": {},
    "Qwen3_5ForCausalLM": {"num_hidden_layers": 4, "head_dim": 8},
    "Qwen2MoeForCausalLM": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 56,
    },
}  # fmt: skip
UNKNOWN_KEYS = {
    "DbrxForCausalLM": ("hidden_size", "intermediate_size", "num_attention_heads",
                        "num_hidden_layers", "num_key_value_heads"),
    "FalconForCausalLM": ("intermediate_size", "num_key_value_heads"),
    "MoshiForCausalLM": ("intermediate_size",),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OTHERWISE)
def test_settings_that_an_answer_names_count_what_peft_adapts(kind, tmp_path):
    """Of classes that pack matrices, or whose stacked experts all-linear does not reach."""
    keys = OF_CLASSES | OTHERWISE[kind]
    if kind in UNKNOWN_KEYS:
        keys = {name: value for name, value in keys.items() if name not in UNKNOWN_KEYS[kind]}
    settings = compared_with_peft(tmp_path, kind, keys, "all-linear")
    assert bool(settings) == (kind not in REACHED)


HYBRIDS = {
    "BambaForCausalLM": {
        "attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8,
    },
    "JambaForCausalLM": {
        "num_hidden_layers": 5, "num_experts": 4, "num_experts_per_tok": 2, "mamba_dt_rank": 4,
    },
    "RecurrentGemmaForCausalLM": {"num_hidden_layers": 3, "lru_width": 24, "head_dim": 8},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind", [kind for kind in HYBRIDS | REACHED if kind != "MixtralForCausalLM"]
)
def test_seven_names_that_recipes_have_count_what_peft_adapts(kind, tmp_path):
    """Mixers have other names for their last layers; gate, up and down may be stacked experts.

    Those of Mixtral are w1, w3 and w2.
    """
    keys = OF_CLASSES | (HYBRIDS | REACHED)[kind]
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    settings = compared_with_peft(tmp_path, kind, keys, names)
    assert bool(settings) == (kind in REACHED)


@pytest.mark.filterwarnings("ignore")
def test_names_of_latent_attention_count_what_peft_adapts(tmp_path):
    """Of DeepSeek, GLM and Kimi; they were unknown."""
    names = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    keys = OF_CLASSES | REACHED["DeepseekV2ForCausalLM"]
    assert not compared_with_peft(tmp_path, "DeepseekV2ForCausalLM", keys, names)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("targets", [["down_proj"], ["gate_proj", "up_proj", "q_proj"]])
def test_one_stack_of_experts_has_no_setting(targets, tmp_path):
    """PEFT adapts gate and up in one stack, down in another; nothing said that we do not."""
    keys = OF_CLASSES | REACHED["Qwen3MoeForCausalLM"]
    with pytest.raises(AssertionError):
        compared_with_peft(tmp_path, "Qwen3MoeForCausalLM", keys, targets)
    run = {"adapter": "lora", "adapter_targets": " ".join(targets), "implementation": "modelbudget"}
    notes = mb.model(str(tmp_path)).predictions(["gradient_bytes"], run).notes
    assert any("there is no setting here; allowed: all three, or none" in note for note in notes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("saved", ["embed_tokens", "lm_head"])
def test_what_is_saved_of_a_vocabulary_is_its_matrix_alone(saved, tmp_path):
    """Copies of the positions, and of OPT's projections, were trained with it."""
    keys = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 1, "ffn_dim": 40,
            "word_embed_proj_dim": 16, "num_attention_heads": 4}  # fmt: skip
    saved = {"modules_to_save": [saved]}
    compared_with_peft(tmp_path, "OPTForCausalLM", keys, ["q_proj", "fc1"], saved)


OF_OLDER_CLASSES = {
    "GPT2LMHeadModel": ["c_attn", "c_fc"],
    "OpenAIGPTLMHeadModel": ["c_attn", "c_fc"],
    "BloomForCausalLM": ["query_key_value", "dense_h_to_4h", "dense_4h_to_h"],
    "GPTNeoXForCausalLM": ["query_key_value", "dense_4h_to_h"],
    "MptForCausalLM": ["Wqkv", "up_proj", "down_proj"],
    "GPTJForCausalLM": ["q_proj", "v_proj", "fc_in", "fc_out"],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OF_OLDER_CLASSES)
def test_names_of_older_classes_count_what_peft_adapts(kind, tmp_path):
    """c_attn of GPT-2, and of PEFT's defaults for it, was unknown."""
    keys = OTHERWISE.get(kind, {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4})
    if kind == "GPTNeoXForCausalLM":
        keys = OF_CLASSES
    names = OF_OLDER_CLASSES[kind]
    settings = compared_with_peft(tmp_path, kind, keys, names)
    assert bool(settings) == ("q_proj" not in names)


def compared_with_peft(folder, kind, keys, targets, of_config: dict | None = None) -> dict:
    """Compare trained parameters of a class; return the settings that an answer names."""
    made = getattr(transformers, kind).config_class(**keys)
    made.architectures = [kind]
    made.save_pretrained(folder)
    with torch.device("meta"):
        model = getattr(transformers, kind)(made)
    lora = peft.LoraConfig(target_modules=targets, **of_config or {})
    adapted = peft.get_peft_model(model, lora)
    trained = sum(tensor.numel() for tensor in adapted.parameters() if tensor.requires_grad)
    given = targets if isinstance(targets, str) else " ".join(targets)
    ours = mb.model(str(folder))
    run = {"adapter": "lora", "adapter_targets": given, "implementation": "modelbudget"}
    run |= {name: " ".join(modules) for name, modules in (of_config or {}).items()}
    run |= {"dtype": "float32"}
    lines = " ".join(ours.predictions(["gradient_bytes"], run).notes)
    settings = dict(
        setting.split("=")
        for code in re.findall("`([^`]*)`", lines)
        for setting in code.split(", ")
    )
    if "implementation" in settings:
        settings["length"] = 8
    run |= settings
    assert ours.predictions(["gradient_bytes"], run)["gradient_bytes"].total == 4 * trained
    return settings
