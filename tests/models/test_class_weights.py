"""Classes of transformers whose linear layers bitsandbytes quantises, against what it loads."""

import pytest
from helpers.small_classes import OTHERS, SMALL

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.reference.class_run import class_run
from modelbudget.measurement.reference.class_trace import trace_class

LOADED = {
    ("GPT2LMHeadModel", "bnb-4bit"): 85_568,
    ("MixtralForCausalLM", "bnb-4bit"): 74_048,
    ("Qwen2MoeForCausalLM", "bnb-4bit-double"): 56_586,
    ("FalconForCausalLM", "bnb-4bit"): 47_296,
    ("MambaForCausalLM", "bnb-8bit"): 11_400,
    ("T5ForConditionalGeneration", "bnb-4bit"): 33_920,
    ("BertForMaskedLM", "bnb-8bit"): 54_618,
}
"""Bytes of parameters and of their scales, tables and offsets after `from_pretrained` in bfloat16
on a CPU, with transformers 5.23.0 and bitsandbytes 0.50.2."""


@pytest.mark.parametrize(("kind", "weights"), LOADED)
def test_the_layers_of_a_class_that_transformers_converts(kind, weights):
    """Conv1D, gates and the head of BERT; not stacked experts, T5's wo, Falcon's own layers."""
    run = RunConfig(weights=weights, dtype="bfloat16")
    traced = trace_class(kind, (SMALL | OTHERS)[kind], class_run(kind, run), {"parameter_bytes"})
    assert sum(traced.values["parameter_bytes"].values()) == LOADED[kind, weights]


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("LlamaForCausalLM", {"weights": "gptq-4bit"}, "traced with weights of the dtype"),
        ("LlamaForCausalLM", {"kept_in_dtype": "mlp"}, "is traced with 'none'"),
        ("GPT2LMHeadModel", {"weights": "quanto-int8"}, "Conv1D, which stays in the dtype"),
    ],
)
def test_weights_with_which_a_class_is_not_traced(kind, fields, reason):
    with pytest.raises(ValueError, match=reason):
        class_run(kind, RunConfig(**{"weights": "bnb-4bit"} | fields))
