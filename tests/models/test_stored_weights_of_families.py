"""Quantised weights of families that are not decoders: programs against traces of our modules."""

from typing import Any

import pytest
import torch
from helpers.other_families import READ_TOKENS, TINY_MODELS, trained
from helpers.tiers import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_adapters import adapters, check_step
from test_adapters_of_families import CLASSES, MAMBA, SMALL
from test_per_layer_input import FEW_LAYERS, KINDS
from test_stored_weights import ANY_SHAPE
from torch import nn
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

import modelbudget as mb
from modelbudget.architecture.adapter_methods import why_not_over_stored
from modelbudget.architecture.run_adapter import BITSANDBYTES
from modelbudget.architecture.run_config import HALF, RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.families.per_layer_input import PerLayerInput
from modelbudget.huggingface.offline import transformers
from modelbudget.measurement.build import build
from modelbudget.measurement.step.module_settings import arrange
from modelbudget.measurement.trace.inference import infer
from modelbudget.modules.initialise import uninitialised
from modelbudget.operations.part import NoProgramError
from modelbudget.predict.prediction_or_reason import terms_or_reason
from modelbudget.quantities.inference_step import inference
from modelbudget.quantities.training_step import training_step

METHODS = ["lora", "lora_fa", "vera", "loha", "ia3", "dora"]
FAMILIES = [family for family in READ_TOKENS if "adapter" in family.switches_of_run]


def over_stored(data, a, run) -> RunConfig:
    """Draw a run that trains an adapter over a format of quantised weights."""
    weights = data.draw(st.sampled_from(ANY_SHAPE))
    run = run.model_copy(update=data.draw(adapters(a, run, METHODS)) | {"weights": weights})
    if why_not_over_stored(run):
        run = run.model_copy(update={"adapter": "lora"})
    is_prepared = run.dtype in HALF and weights in BITSANDBYTES.split() and data.draw(st.booleans())
    kernel = "efficient" if run.attention_kernel == "flash" else run.attention_kernel
    kbit = {"prepare_for_kbit_training": True, "attention_kernel": kernel}
    prepared = run.model_copy(update=kbit)
    return prepared if is_prepared and not run_mistake(a, prepared) else run


def check(a, run) -> None:
    check_step(a, run)
    try:
        peaks = inference(a.program(), a, run).peaks
        with uninitialised():
            model = build(a, "meta", run.dtype)
        values = infer(model, run, {"peak_inference_bytes"})
    except ValueError:  # the last mask, or what an encoder without a decoder keeps
        return
    assert peaks == {phase: values["peak_inference_bytes"][phase] for phase in peaks}


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=examples(10), deadline=None)
@given(st.data())
def test_every_allocation_with_stored_weights_of_a_family_is_the_traces(family, data):
    """Catches rows of states that are copied before they are quantised (Mamba's convolution)."""
    a, run = data.draw(trained(family))
    check(a, over_stored(data, a, run))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(4), deadline=None)
@given(st.data())
def test_every_allocation_with_stored_weights_and_inputs_of_each_layer(kind, data):
    a = PerLayerInput(**FEW_LAYERS | KINDS[kind])
    run = RunConfig(batch=2, length=9, dtype="bfloat16")
    check(a, over_stored(data, a, run))


OPT = {
    "vocab_size": 32, "hidden_size": 32, "ffn_dim": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 32, "word_embed_proj_dim": 16,
    "do_layer_norm_before": False,
}  # fmt: skip
BYTES = {
    "bnb-8bit": lambda rows, columns: rows * columns + 4 * rows,
    "bnb-4bit": lambda rows, columns: -(-rows * columns // 2) + 4 * -(-rows * columns // 64) + 64,
}
LAST_OF_TEXT = ["model.altup_unembed_projections.2"]
"""What transformers leaves out as the last module of Gemma 3n's text; a tower is its last."""
OF_CLASSES = CLASSES | {
    "BertForPreTraining": (SMALL, []),
    "BertModel": (SMALL, []),
    "AlbertForPreTraining": (SMALL | {"embedding_size": 16}, []),
    "FalconMambaForCausalLM": (MAMBA, []),
    "OPTForCausalLM": (OPT, []),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("weights", BYTES)
@pytest.mark.parametrize("kind", OF_CLASSES)
def test_bytes_are_those_of_the_linear_layers_that_transformers_replaces(kind, weights, tmp_path):
    """The class on meta, the layers of which transformers makes others for bitsandbytes.

    Catches T5's wo, which stays, and what lies outside of the layers (OPT's project_in).
    """
    keys, _ = OF_CLASSES[kind]
    made = getattr(transformers, kind).config_class(**keys)
    made.architectures, made.dtype = [kind], torch.bfloat16
    made.save_pretrained(tmp_path)
    with torch.device("meta"):
        model: Any = getattr(transformers, kind)(made)
    kept = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    kept = [name for name in kept if name not in LAST_OF_TEXT]
    linear = [
        part.weight
        for path, part in model.named_modules()
        if type(part) is nn.Linear and should_convert_module(path, kept)
    ]
    run = {"dtype": "bfloat16", "implementation": "modelbudget"}
    ours = mb.model(str(tmp_path))
    change = ours.predict("parameter_bytes", run | {"weights": weights}).total
    change -= ours.predict("parameter_bytes", run).total
    assert change == sum(BYTES[weights](*p.shape) - 2 * p.numel() for p in linear)


TINY_SWITCH = TINY_MODELS["T5"].model_copy(
    update={"mlps": "mlp moe", "n_expert": 2, "n_expert_per_token": 1, "d_expert": 8}
)


@pytest.mark.parametrize(
    ("architecture", "fields", "reason"),
    [
        (TINY_MODELS["Zamba"], {}, "which matrices of zamba are converted is not known"),
        (TINY_SWITCH, {}, "experts: their classes have a linear layer for each"),
        (TINY_MODELS["BERT"], {"kept_in_dtype": "mlp.gate"}, "kept_in_dtype = mlp.gate: no such"),
        (TINY_MODELS["BERT"], {"weights_of": "experts"}, "all matrices would stay in the dtype"),
        (TINY_MODELS["T5"], {"weights": "awq"}, "query of 8 rows by 8 columns: awq needs"),
    ],
)
def test_bytes_that_are_not_known_are_refused_with_the_reason(architecture, fields, reason):
    run = RunConfig(**{"weights": "bnb-4bit"} | fields)
    assert reason in terms_or_reason("parameter_bytes", architecture, run)[1]


def test_a_quantised_layer_that_would_be_trained_is_refused_twice():
    """A trained bias got no gradient."""
    a, fields = TINY_MODELS["ALBERT"], {"weights": "bnb-4bit", "trained": "biases"}
    run = RunConfig(adapter="lora", attention_kernel="math", **fields)
    with pytest.raises(NoProgramError, match="it is quantised"):
        training_step(a.program(), a, run)
    with pytest.raises(ValueError, match="it is quantised"), uninitialised():
        arrange(build(a, "meta", run.dtype), run)


def test_flan_t5_xxl_in_8_bits():
    """Of its MLPs the last layer stays in the dtype: 48 matrices of 4,096 by 10,240."""
    run = {"dtype": "bfloat16", "implementation": "modelbudget"}
    model = mb.model("google/flan-t5-xxl")
    in_dtype = model.predict("parameter_bytes", run).total
    stored = model.predict("parameter_bytes", run | {"weights": "bnb-8bit"}).total
    n_number = 72 * 4 * 4096 * 4096 + 48 * 2 * 4096 * 10240
    n_row = 72 * 4 * 4096 + 48 * 2 * 10240
    assert in_dtype - stored == n_number - 4 * n_row


def test_a_format_of_tables_leaves_characters_as_they_are():
    """MLX's has the table of tokens too, which a model that reads characters has not."""
    a = mb.model("big-lstm-cnn-input", n_vocab=60, d_hidden=64, d_last=64).architecture
    with uninitialised():
        model = build(a, "meta", "bfloat16")
        arrange(model, RunConfig(dtype="bfloat16", weights="mlx-4bit"))
    assert model.embedding.character.weight.shape == (a.n_character, a.d_character)
    assert model.head.weight.dtype == torch.int32
