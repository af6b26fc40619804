"""Adapters of families that are not decoders: programs against traces, counts against PEFT."""

import json
from typing import Any

import peft
import pytest
import torch
from helpers.other_families import READ_TOKENS, TINY_MODELS, trained
from helpers.small_classes import SMALL as DECODERS
from helpers.tiers import ALL, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_adapters import adapters, check_step
from test_per_layer_input import FEW_LAYERS, KINDS

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.per_layer_input import PerLayerInput
from modelbudget.huggingface.construct import config_object
from modelbudget.huggingface.offline import transformers
from modelbudget.measurement.build import build_class
from modelbudget.measurement.reference.class_run import class_run
from modelbudget.measurement.reference.class_trace import trace_class
from modelbudget.measurement.step.train import train
from modelbudget.modules.initialise import uninitialised
from modelbudget.operations.part import NoProgramError
from modelbudget.quantities.training_step import training_step


@pytest.mark.parametrize(
    "family", [family for family in READ_TOKENS if "adapter" in family.switches_of_run]
)
@settings(max_examples=examples(10), deadline=None)
@given(st.data())
def test_every_allocation_of_another_family_is_the_traces(family, data):
    """Catches a tied head that reads the copy of a table, and a stack with experts at one end."""
    a, run = data.draw(trained(family))
    check_step(a, run.model_copy(update=data.draw(adapters(a, run))))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(4), deadline=None)
@given(st.data())
def test_every_allocation_with_inputs_of_each_layer_is_the_traces(kind, data):
    a = PerLayerInput(**FEW_LAYERS | KINDS[kind])
    run = RunConfig(batch=2, length=9, dtype="bfloat16")
    check_step(a, run.model_copy(update=data.draw(adapters(a, run))))


SMALL = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "pad_token_id": 0,
}  # fmt: skip
STACKS = {
    "vocab_size": 32, "d_model": 32, "pad_token_id": 0, "decoder_start_token_id": 0,
    "encoder_layers": 2, "encoder_ffn_dim": 40, "encoder_attention_heads": 4,
    "decoder_layers": 3, "decoder_ffn_dim": 40, "decoder_attention_heads": 4,
}  # fmt: skip
T5 = {
    "vocab_size": 32, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
GEMMA = SMALL | {
    "num_key_value_heads": 2, "head_dim": 8, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 32, "num_kv_shared_layers": 0,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
MAMBA = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2}
QUERY_VALUE = ["q_proj", "v_proj"]
CLASSES = {
    # Class: its config, and targets that its users give PEFT, mostly PEFT's own defaults.
    "BertForMaskedLM": (SMALL, ["query", "value"]),
    "RobertaForMaskedLM": (SMALL, ["query", "value"]),
    "XLMRobertaForMaskedLM": (SMALL, ["query", "key", "value"]),
    "ElectraForMaskedLM": (SMALL, ["query", "value"]),
    "T5ForConditionalGeneration": (T5, ["q", "v"]),
    "MT5ForConditionalGeneration": (T5, ["q", "k", "v", "o", "wi_0", "wi_1", "wo"]),
    "BartForConditionalGeneration": (STACKS, QUERY_VALUE),
    "MarianMTModel": (STACKS, ["q_proj", "k_proj", "v_proj", "fc1", "fc2"]),
    "MambaForCausalLM": (MAMBA, ["in_proj", "x_proj", "dt_proj"]),
    "Mamba2ForCausalLM": (
        MAMBA | {"num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 8}, ["in_proj"]
    ),
    "RwkvForCausalLM": (
        MAMBA | {"attention_hidden_size": 32, "intermediate_size": 64},
        ["key", "value", "receptance", "output"],
    ),
    "Gemma3nForCausalLM": (
        GEMMA | {"laurel_rank": 4, "activation_sparsity_pattern": [0.0, 0.0]}, QUERY_VALUE
    ),
    "Gemma4ForCausalLM": (GEMMA | {"global_head_dim": 16}, QUERY_VALUE),
}  # fmt: skip
NOT_ALL_LINEAR = ("MambaForCausalLM", "Mamba2ForCausalLM")
"""Classes of which PEFT refuses out_proj (tuners/tuners_utils.py)."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CLASSES)
def test_peft_trains_as_many_parameters_of_the_class(kind, tmp_path):
    """By PEFT's names of targets, and by all-linear."""
    keys, names = CLASSES[kind]
    made = getattr(transformers, kind).config_class(**keys)
    made.architectures = [kind]
    made.save_pretrained(tmp_path)
    ours = mb.model(str(tmp_path))
    for targets in [names] if kind in NOT_ALL_LINEAR else [names, "all-linear"]:
        with torch.device("meta"):
            model = getattr(transformers, kind)(made)
        model = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets))
        n_trained = sum(tensor.numel() for tensor in model.parameters() if tensor.requires_grad)
        given = targets if targets == "all-linear" else " ".join(targets)
        run = {"adapter": "lora", "adapter_targets": given, "implementation": "modelbudget"}
        assert ours.predictions(["gradient_bytes"], run)["gradient_bytes"].total == 4 * n_trained


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["MambaForCausalLM", "FalconMambaForCausalLM"])
def test_an_adapter_of_a_step_that_a_class_does_not_compute_has_a_line(kind, tmp_path):
    made = getattr(transformers, kind).config_class(**MAMBA)
    made.architectures = [kind]
    made.save_pretrained(tmp_path)
    targets = ["dt_proj", "x_proj"]
    model = peft.get_peft_model(
        getattr(transformers, kind)(made), peft.LoraConfig(target_modules=targets)
    )
    tokens = torch.zeros(1, 4, dtype=torch.long)
    model(input_ids=tokens, labels=tokens).loss.backward()
    trained = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
    assert {path.split(".")[-4] for path, p in trained if p.grad is None} == {"dt_proj"}
    run = {"adapter": "lora", "adapter_targets": "step", "implementation": "modelbudget"}
    notes = mb.model(tmp_path).predictions(["gradient_bytes"], run).notes
    assert any("adapter around dt_proj (step) gets no gradient" in note for note in notes)


MT0_LARGE = {
    "architectures": ["MT5ForConditionalGeneration"], "model_type": "mt5", "d_model": 1024,
    "d_kv": 64, "d_ff": 2816, "num_layers": 24, "num_heads": 16, "vocab_size": 250112,
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
}  # fmt: skip


def test_peft_prints_as_many_parameters_of_mt0_large(tmp_path):
    """Query and value of rank 8: peft, docs/source/quicktour.md."""
    (tmp_path / "config.json").write_text(json.dumps(MT0_LARGE))
    run = {"adapter": "lora", "adapter_targets": "q v", "implementation": "modelbudget"}
    answer = mb.model(tmp_path).predictions(["gradient_bytes"], run)
    assert answer["gradient_bytes"].total == 4 * 2_359_296


BAMBA = SMALL | {
    "attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8,
    "num_key_value_heads": 2,
}  # fmt: skip
WHISPER = STACKS | {
    "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 20, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
OF_STEP = {"activation_bytes", "gradient_bytes", "optimizer_bytes", "peak_training_bytes"}
TRACED = {
    # Class: its config, and targets. Packed matrices, layers of speech, Conv1D, float32 layers, and
    # Bamba's code, which reads the bias of a layer that has none.
    "BertForMaskedLM": (SMALL, ["query", "value"]),
    "ModernBertForMaskedLM": (SMALL, "all-linear"),
    "T5ForConditionalGeneration": (T5, "all-linear"),
    "WhisperForConditionalGeneration": (WHISPER, QUERY_VALUE),
    "MambaForCausalLM": (MAMBA, ["in_proj", "x_proj", "dt_proj"]),
    "Gemma3nForCausalLM": (CLASSES["Gemma3nForCausalLM"][0], "all-linear"),
    "BambaForCausalLM": (BAMBA, "all-linear"),
    "GPT2LMHeadModel": (DECODERS["GPT2LMHeadModel"], "all-linear"),
    "LlamaForCausalLM": (DECODERS["LlamaForCausalLM"], "all-linear"),
}
SETTINGS = [
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "adapter_dropout": True, "adapter_dtype": "dtype"},
    {"dtype": "float32", "recompute": "full", "input_gradient": True},
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TRACED)
@pytest.mark.parametrize("fields", SETTINGS if ALL else SETTINGS[:1])
def test_the_trace_of_a_class_is_that_of_the_class_that_peft_wraps(kind, fields):
    keys, targets = TRACED[kind]
    given = targets if targets == "all-linear" else " ".join(targets)
    run = RunConfig(
        batch=2, length=16, attention_kernel="efficient", adapter="lora", adapter_rank=2,
        adapter_targets=given, **fields,
    )  # fmt: skip
    with uninitialised():
        ours = trace_class(kind, keys, class_run(kind, run), OF_STEP | {"parameters"})
        model: Any = build_class(kind, config_object(kind, keys), plain(run), "meta")
    assert sum(ours.values["parameters"].values()) == sum(p.numel() for p in model.parameters())
    if run.input_gradient:
        model.enable_input_require_grads()
    lora = peft.LoraConfig(r=2, target_modules=targets, lora_dropout=0.1 * run.adapter_dropout)
    is_float32 = run.adapter_dtype == "float32"
    peft.get_peft_model(model, lora, autocast_adapter_dtype=is_float32)
    theirs = train(model, plain(class_run(kind, run)), OF_STEP)
    assert ours.values["peak_training_bytes"] == theirs["peak_training_bytes"]
    for name in OF_STEP:
        assert sum(ours.values[name].values()) == sum(theirs[name].values())


def plain(run: RunConfig) -> RunConfig:
    return run.model_copy(update={"adapter": "none", "input_gradient": False})


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("Qwen3MoeForCausalLM", {}, "is traced with frozen experts"),
        ("MambaForCausalLM", {}, "PEFT refuses out_proj of MambaForCausalLM"),
        ("BertForMaskedLM", {"adapter": "prompt"}, "traced with adapters of layers alone"),
        ("BertForMaskedLM", {"modules_to_save": "head"}, "is traced with 'none'"),
        ("BertForMaskedLM", {"adapter": "none", "trained": "norms"}, "is traced with 'default'"),
    ],
)
def test_an_adapter_with_which_a_class_is_not_traced(kind, fields, reason):
    with pytest.raises(ValueError, match=reason):
        class_run(kind, RunConfig(**{"adapter": "lora"} | fields))


def test_an_adapter_that_the_loss_does_not_reach_is_refused():
    """Only here: of ALBERT's layers all are frozen, and its pooler reads no masked token."""
    run = RunConfig(adapter="lora", trained_from_layer=2, batch=2, length=8)
    a = TINY_MODELS["ALBERT"].model_copy(update={"d_emb": 0, "transform": False})
    with pytest.raises(NoProgramError, match="the loss reaches nothing that is trained"):
        training_step(a.program(), a, run)


@pytest.mark.parametrize("method", ["c3a", "oft"])
@pytest.mark.parametrize("block", [4, 8])
@pytest.mark.parametrize("name", ["BERT", "T5", "Mamba"])
def test_a_block_as_wide_as_its_layer(name, block, method):
    """A sum over one block is none: torch multiplies number by number, and copies conjugates."""
    a = TINY_MODELS[name]
    run = RunConfig(
        adapter=method, adapter_block=block, adapter_targets="key output", batch=2, length=5,
        attention_kernel="math",
    )  # fmt: skip
    check_step(a, run)
