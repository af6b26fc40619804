"""Peaks of classes of `transformers` on the page: the calculator has those that the command has."""

from contextlib import suppress

import pytest
from pydantic import ValidationError

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.evaluators import graph
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.common.expressions import Expression
from modelbudget.families.decoder import Decoder
from modelbudget.report.calculator_forms import Formulas
from modelbudget.report.calculator_runs import ALONE_CHOICES
from modelbudget.report.config_translation import default_decoders
from modelbudget.sweeps.compared import conditions_on_fields, not_compared_at
from modelbudget.sweeps.derive import named_architecture

PEAK = "peak_training_bytes"
ONE = {"dtype": "bfloat16", "attention_kernel": "flash", "recompute": "none", **ALONE_CHOICES}
BIASES = "query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "down_bias"
MODELS = {"LlamaForCausalLM": "llama-3-8b", "Qwen2ForCausalLM": "qwen-2.5-7b"}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_the_page_has_a_peak_of_a_class_where_the_command_has(
    catalogue, kind, zero, tensor_parallel
):
    """It had peaks with shards and with tensor parallelism that were not compared."""
    a = named_architecture(catalogue.bases[MODELS[kind]])
    record = graph.namespace(Decoder, {name: getattr(a, name) for name in Decoder.categorical()})
    record.n_mtp_layer = 0
    forms = Formulas({})
    shared = {"tensor_parallel": tensor_parallel, "zero": zero, "data_parallel": 2}
    of_page = forms._run(record, ONE | {"zero": zero}, [PEAK], kind).get(PEAK)
    of_class = implementations()[TRANSFORMERS].of_class(kind)
    run = RunConfig(**{**ONE, **shared, **of_class, "implementation": TRANSFORMERS})
    has_peak = not_compared_at(PEAK, kind, None, a, run) is None
    values = {**dict(a), **dict(run)}
    assert bool(of_page and value_of(forms.graph, of_page[1], values)) == has_peak
    assert has_peak == (tensor_parallel == 1 and (zero == 0 or kind == "LlamaForCausalLM"))


CHANGES = [
    {}, {"gated": False}, {"parallel": True}, {"tied": True}, {"tied": False}, {"n_layer": 3},
    {"d_head": 64}, {"n_kv_head": 2}, {"head_bias": True, "tied": False}, {"sinks": True},
    {"n_ctx": 100}, {"window": 0}, {"d_ff": 96}, {"n_expert": 6}, {"n_expert_per_token": 1},
    {"n_dense_layer": 1}, {"n_expert": 6, "d_shared": 8}, {"vocab_multiple": 100},
    {"embedding_norm": True},
    {"final_norm": False}, {"norm_bias": True}, {"attention_gate": True},
    *({name: on} for name in BIASES for on in (False, True)),
    *(dict.fromkeys(names, on) for names in (BIASES[:3], BIASES[:4], BIASES[4:]) for on in (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("kind", implementations()[TRANSFORMERS].classes)
def test_a_class_answers_for_fields_that_it_can_have(kind):
    """Written as its config.json and read back they are the model, and were compared with traces.

    All but Mistral's were answered for, whatever fields a reader had changed.
    """
    of_class = implementations()[TRANSFORMERS].of_class(kind)
    run = RunConfig(**{"dtype": "float32", "implementation": TRANSFORMERS, **of_class})
    default, answers = default_decoders()[kind], set()
    conditions = [Expression(text) for text in conditions_on_fields(PEAK, kind, default)]
    for change in CHANGES:
        with suppress(ValidationError):
            a = Decoder.model_validate(dict(default) | change)
            is_known = not_compared_at(PEAK, kind, None, a, run) is None
            values = {**dict(a), **dict(run)}
            assert all(condition(values) for condition in conditions) == is_known, change
            answers.add(is_known)
    assert answers == {False, True}


def value_of(nodes: graph.Graph, number: int, values: dict) -> int:
    operation, left, right = nodes._rows[number]
    if operation == graph.CONSTANT:
        return left
    if operation == graph.FIELD:
        return int(values[nodes.fields[left]])
    x, y = (value_of(nodes, operand, values) for operand in (left, right))
    match operation:
        case graph.POSITIVE:
            return int(x > 0)
        case graph.CEIL_DIV:
            return ceil_div(x, y)
        case graph.LARGEST:
            return max(x, y)
    return {"+": x + y, "-": x - y, "*": x * y}[operation]
