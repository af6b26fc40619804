"""Programs of families that are not decoders against traces: every allocation, in order."""

from unittest.mock import patch

import pytest
from helpers.allocations import first_difference, programmed, traced
from helpers.inference import measured_inference, predicted_inference
from helpers.other_families import READ_TOKENS, TINY_MODELS, trained
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelbudget.api.model import model as named_model
from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.encoder import Encoder
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.tape import Active
from modelbudget.quantities.depth import of_any_depth
from modelbudget.quantities.inference_step import declared_caches, inference
from modelbudget.quantities.training_step import training_step

few_examples = settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
DEPTHS = {"n_layer", "n_distinct", "n_encoder_layer", "n_decoder_layer"}
DEEP = {  # ALBERT's layers are few ones, passed again and again
    name: a
    for name, a in TINY_MODELS.items()
    if DEPTHS & type(a).model_fields.keys() and name != "ALBERT"
}


@pytest.mark.parametrize("family", READ_TOKENS)
@few_examples
@given(st.data())
def test_training_is_that_of_the_module(family, data):
    a, run = data.draw(trained(family))
    program = family.program()
    assert not first_difference(programmed(a, run, program), traced(a, run)), (a, run)
    step = training_step(program, a, run, n_steps=0)
    formula = family.parameters(a)
    assert +step.parameters == {name: term.total for name, term in formula.items() if term.total}


@pytest.mark.parametrize("family", [family for family in READ_TOKENS if family.has_cache])
@few_examples
@given(st.data())
def test_inference_is_that_of_the_module(family, data):
    with_cache = trained(family).filter(lambda model: not model[0].reads_all_at_once)
    a, run = data.draw(with_cache)
    step, measured = inference(family.program(), a, run), measured_inference(a, run)
    assert step.peaks == measured["peak_inference_bytes"]
    assert step.caches == measured["cache_bytes"]
    assert +step.flops_decode == measured["flops_decode"]


@few_examples
@given(trained(Encoder).filter(lambda model: model[0].reads_all_at_once), st.booleans())
def test_an_encoder_reads_all_tokens_in_one_pass(model, has_head):
    a, run = model
    a = a if has_head else a.model_copy(update={"lm_head": False, "transform": False})
    measured = measured_inference(a, run, {"peak_inference_bytes", "flops_forward"})
    for quantity, values in measured.items():
        of_components = {name: value for name, value in values.items() if value}
        assert predicted_inference(a, run, quantity) == of_components, quantity


@pytest.mark.parametrize("setting", ["tensor_parallel", "context_parallel", "expert_parallel"])
@pytest.mark.parametrize("compute", [training_step, inference, declared_caches])
def test_what_devices_do_not_share_is_refused_by_name(compute, setting):
    a, run = TINY_MODELS["T5"], RunConfig(attention_kernel="flash", dtype="bfloat16")
    shared = run.model_copy(update={setting: 2})
    with pytest.raises(NoProgramError, match=f"^{setting}: 2 of the family encoder-decoder$"):
        compute(type(a).program(), a, shared)


@pytest.mark.parametrize("name", DEEP)
def test_few_layers_and_steps_are_all_of_them(name):
    """Only this sees a family whose layers, or tokens, do not repeat as these runs assume."""
    a, run = deep(DEEP[name]), RunConfig(batch=2, length=12)
    program = type(a).program()
    step = of_any_depth(lambda a: training_step(program, a, run), a)
    with patch.object(Active, "few_steps", False):
        assert step == training_step(program, a, run)
    if type(a).has_cache or type(a).reads_all_at_once:
        step = of_any_depth(lambda a: inference(program, a, run), a, 1)
        with patch.object(Active, "few_steps", False):
            assert step == inference(program, a, run)


@pytest.mark.parametrize(("name", "n_layers"), [("RoBERTa", [3]), ("Transformer-XL", [3, 5])])
def test_one_period_at_each_end_is_enough_unless_layers_share_a_tensor(name, n_layers):
    """Layers of Transformer-XL read the same positions, whose first gradient is a view.

    Catches a peak in the first layer that is computed without the sum of their gradients.
    """
    sizes = {"n_vocab": 8, "d_model": 2, "n_head": 4, "d_head": 3, "d_ff": 3, "tied": False}
    a, run = deep(DEEP[name]).model_copy(update=sizes), RunConfig(length=1, backend="cpu")
    depths = []

    def step(a):
        depths.append(a.n_layer)
        return training_step(type(a).program(), a, run)

    of_few = of_any_depth(step, a)
    assert of_few.peaks == training_step(type(a).program(), a, run).peaks
    assert depths == n_layers


@pytest.mark.parametrize(
    ("reader", "n_end", "n_layer"), [(training_step, 2, 27), (inference, 1, 19)]
)
def test_layers_with_a_shared_block_are_few_of_them(reader, n_end, n_layer):
    """Zamba 7B names all its 76 layers; the block's gradients add up from the second use on."""
    a, run = named_model("zamba-7b").architecture, RunConfig(length=12, dtype="bfloat16")
    depths = []

    def step(a):
        depths.append(a.n_layer)
        return reader(type(a).program(), a, run)

    of_few = of_any_depth(step, a, n_end)
    assert depths == [n_layer]
    assert of_few == reader(type(a).program(), a, run)


def deep(a):
    return a.model_copy(update=dict.fromkeys(DEPTHS & type(a).model_fields.keys(), 20))
