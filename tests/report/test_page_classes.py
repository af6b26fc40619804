"""Peaks of classes of `transformers` on the page: the calculator has those that the command has."""

import pytest

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.evaluators import graph
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.families.decoder import Decoder
from modelbudget.report.calculator_forms import Formulas
from modelbudget.report.calculator_runs import ALONE_CHOICES
from modelbudget.sweeps.compared import not_compared_at
from modelbudget.sweeps.derive import named_architecture

PEAK = "peak_training_bytes"
ONE = {"dtype": "bfloat16", "attention_kernel": "flash", "recompute": "none", **ALONE_CHOICES}
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
