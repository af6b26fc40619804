"""What other tools call our fields: the file names fields that exist, and all keys of configs."""

import re
from typing import get_args

import pytest

import modelbudget as mb
from modelbudget.architecture.optimizers import NAMES
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.stored_formats import FORMATS
from modelbudget.common import suggestions
from modelbudget.common.errors import InputError
from modelbudget.common.suggestions import did_you_mean, field_names, unknown_field
from modelbudget.components.layer import all_parts
from modelbudget.families import families
from modelbudget.huggingface.classes import shared_keys
from modelbudget.sweeps.quantity_names import Quantity
from modelbudget.sweeps.sweep_file import Measure, Sweep

TOOLS = {"huggingface", "megatron", "nanogpt", "other"}


def test_every_field_and_quantity_exists():
    known = {field for one in (RunConfig, *families().values()) for field in one.model_fields}
    known |= {"devices", "fit"}  # options of the command alone
    known |= {*NAMES, *FORMATS}  # values that trainers have other names for
    known |= Sweep.model_fields.keys() | Measure.model_fields.keys()
    assert field_names().keys() <= known | set(get_args(Quantity)) | all_parts().keys()
    assert {tool for tools in field_names().values() for tool in tools} == TOOLS


def test_keys_that_mean_a_field_in_every_class_are_its_names():
    for key, field in shared_keys().sizes.items():
        assert key in field_names()[field]["huggingface"]


@pytest.mark.parametrize(
    ("name", "ours"),
    [("gradient_accumulation_steps", "n_microbatch"), ("per_device_train_batch_size", "batch"),
     ("cutoff_len", "length"), ("fsdp", "zero"), ("use_liger_kernel", "loss_kernel"),
     ("max_length", "length"), ("max_seq_length", "length"), ("strategy", "zero"),
     ("layers_to_transform", "trained_from_layer"), ("r", "adapter_rank"),
     ("train_micro_batch_size_per_gpu", "batch"), ("accumulate_grad_batches", "n_microbatch"),
     ("enable_activation_checkpointing", "recompute"), ("num_output_chunks", "loss_chunks"),
     ("galore_rank", "optimizer_rank"), ("pp", "pipeline_parallel"), ("ep", "expert_parallel"),
     ("cp", "context_parallel"), ("dp_shard", "data_parallel"),
     ("use_distributed_optimizer", "zero")],
)  # fmt: skip
def test_keys_of_trainers_are_names_of_settings(name, ours):
    """Typed after --set, each had no suggestion, or one of a model's field or of other letters."""
    fields = (*families()["decoder"].model_fields, *RunConfig.model_fields)
    assert did_you_mean(name, fields) == f"; did you mean {ours}?"


@pytest.mark.parametrize("name", ["n_layer", "num_layers"])
def test_the_depth_of_an_encoder_with_a_decoder_is_offered(name):
    """`num_layers` is T5's own key of its encoder; neither had a suggestion."""
    fields = families()["encoder-decoder"].model_fields
    assert did_you_mean(name, fields) == "; did you mean n_encoder_layer?"
    assert did_you_mean("num_layers", families()["decoder"].model_fields).endswith(" n_layer?")


@pytest.mark.parametrize(
    ("name", "ours"),
    [("adamw_torch_fused", "adamw"), ("adamw_bnb_8bit", "adamw-8bit"),
     ("paged_adamw_8bit", "paged-adamw-8bit")],
)  # fmt: skip
def test_optimizers_of_trainer_are_ours(name, ours):
    assert did_you_mean(name, NAMES) == f"; did you mean {ours}?"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("sample_packing", "no setting: all sequences have `length` tokens"),
        ("learning-rate", "no setting: nothing in bytes or FLOPs of a step depends on it"),
        ("use_dora", "no setting: write `adapter=dora"),
        ("fp8", "no setting: training in FP8 is not described"),
        ("selective_ac_option", "unknown field; did you mean recompute?"),
        ("bf16", "no setting: write `autocast=bfloat16"),
        ("flash_attn", "unknown field; did you mean attention_kernel?"),
        ("deepspeed_stage", "unknown field; did you mean zero?"),
        ("quantize_base", "no setting: write `weights=bnb-4bit-double"),
        (
            "bias",
            "no setting: write `trained=biases` where biases are trained, and nothing for",
        ),
        ("use_galore", "no setting: write `optimizer=galore`"),
        ("precompute_ref_log_probs", "no setting: write `reference=none`"),
        ("vllm_gpu_memory_utilization", "no setting: write `engine_share"),
        ("contiguous_gradients", "no setting: buffers of DeepSpeed are not described"),
        ("per_device_eval_batch_size", "no setting: evaluation between steps is not described"),
        ("liger_rms_norm", "no setting: of Liger's kernels that of head and loss is described"),
        ("enable_activation_offloading", "no setting: of offload to the host"),
        ("gpu-memory-utilization", "no setting: write `utilisation=90` in place of 0.90"),
        ("rope_scaling", "no setting: write `n_ctx=N`"),
        ("n_gpu_layers", "no setting: write `host_layers=N`"),
        ("max_num_seqs", "unknown field; did you mean sampled_requests?"),
        ("num_ctx", "unknown field; did you mean length?"),
    ],
)
def test_names_of_trainers_without_a_setting_have_an_answer(name, answer):
    """Each was an unknown field alone, or had a suggestion that is about something else."""
    assert unknown_field(name, RunConfig.model_fields, "docs/fields.md").startswith(answer)
    with pytest.raises(InputError, match=re.escape(answer)):
        mb.model("gpt-2-124m").memory({name: 1})


def test_no_field_is_a_name_without_a_setting():
    fields = {field for kind in (RunConfig, *families().values()) for field in kind.model_fields}
    assert not suggestions._without_setting().keys() & {*map(suggestions._plain, fields)}


AXOLOTL = """
base_model: NousResearch/Llama-3.2-1B
load_in_4bit: true
adapter: qlora
lora_target_linear: true
datasets: [{path: a}]
sequence_len: 2048
micro_batch_size: 2
optimizer: adamw_bnb_8bit
bf16: auto
wandb_name:
warmup_ratio: 0.1
fsdp_config: {offload_params: true, made_up: 1}
"""  # as examples/llama-3/qlora-1b.yml of axolotl (067b021c8) has them
TORCHTUNE = """
model: {_component_: torchtune.models.llama3.lora_8b, lora_attn_modules: [v_proj], lora_rank: 8}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: null}
optimizer: {_component_: torch.optim.AdamW, fused: true, lr: 3e-4}
enable_activation_checkpointing: true
"""  # as recipes/configs/llama3/8B_lora_single_device.yaml (bd2a0fc7)
DEEPSPEED = """{
"bf16": {"enabled": true}, "fp16": {"enabled": false}, "train_micro_batch_size_per_gpu": 4,
"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "overlap_comm": true},
"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, "wall_clock_breakdown": true
}"""  # as deepspeed.ai/docs/config-json names them


@pytest.mark.parametrize(
    ("text", "answers", "unknown"),
    [
        (AXOLOTL, {"base_model": "first argument", "load_in_4bit": "`weights` here",
                   "adapter": "`adapter` here", "lora_target_linear": "`adapter_targets` here",
                   "sequence_len": "`length` here", "micro_batch_size": "`n_microbatch`",
                   "optimizer": "`optimizer` here", "bf16": "`autocast=bfloat16`",
                   "offload_params": "`optimizer=adamw-offload`"}, ["made_up"]),
        (TORCHTUNE, {"model": "first argument", "lora_attn_modules": "`adapter_targets` here",
                     "lora_rank": "`adapter_rank` here", "optimizer": "AdamW': `optimizer` here",
                     "fused": "`fused` here",
                     "enable_activation_checkpointing": "`recompute` here"}, []),
        (DEEPSPEED, {"bf16": "`autocast=bfloat16`",
                     "train_micro_batch_size_per_gpu": "n_microbatch", "stage": "write `zero`",
                     "offload_optimizer": "`optimizer=adamw-offload`",
                     "overlap_comm": "zero is FSDP2's", "optimizer": "AdamW': `optimizer` here"},
         ["wall_clock_breakdown"]),
        ("title: a\nquestion: b\nbase: llama-3\n"
         "fixed: {length: 8, batch: 1, dtype: bfloat16}", {}, []),
        ("a: [", {}, []),
    ],
)  # fmt: skip
def test_each_key_of_a_trainers_file_has_an_answer_or_is_named(tmp_path, text, answers, unknown):
    """A file was refused in one line, and its reader left to a table of the docs."""
    path = tmp_path / ("file.json" if text == DEEPSPEED else "file.yml")
    path.write_text(text)
    with pytest.raises(InputError) as refusal:
        mb.model(path)
    _, *lines = refusal.value.mistakes
    left = lines.pop() if unknown else ""
    assert left == (f"{path}: not known: {', '.join(unknown)}" if unknown else "")
    assert [line.removeprefix(f"{path}: ").split(" = ")[0] for line in lines] == [*answers]
    assert all(answer in line for answer, line in zip(answers.values(), lines, strict=True))


def test_a_name_of_an_initialisation_or_of_a_part_says_what_to_write():
    gpt2 = mb.model("gpt-2-124m")
    with pytest.raises(InputError, match="'pissa': no such value: write `adapter=lora`, of which"):
        gpt2.run({"adapter": "pissa"})
    with pytest.raises(InputError, match="mamba: write `input selection step`"):
        gpt2.run({"adapter": "lora", "adapter_targets": "mamba"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d_model: 3", "d_model = 3: "),
        ("d_model: {megatron: [1]}", "d_model.megatron.0 = 1: "),
        ("- d_model", "holds a list, allowed: keys with values"),
    ],
)
def test_a_mistake_in_the_file_is_one_message(tmp_path, monkeypatch, text, message):
    path = tmp_path / "field_names.yaml"
    path.write_text(text)
    monkeypatch.setattr(suggestions, "FIELD_NAMES", path)
    caches = suggestions.field_names, suggestions._by_name
    for cache in caches:
        cache.cache_clear()
    with pytest.raises(InputError) as refusal:
        did_you_mean("hidden_size", ["d_model"])
    assert refusal.value.mistakes[0].startswith(f"{path}: {message}")
    assert len(refusal.value.mistakes) == 1
