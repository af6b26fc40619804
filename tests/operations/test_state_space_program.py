"""Programs of Mamba's and Mamba-2's families against traces, and at the depth of published ones."""

from helpers.allocations import first_difference, programmed, traced
from helpers.inference import measured_inference
from hypothesis import given, settings
from hypothesis import strategies as st

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.state_space import SelectiveScan, StateSpaceDual
from modelbudget.quantities.depth import of_any_depth
from modelbudget.quantities.inference_step import inference
from modelbudget.quantities.training_step import _training_step, training_step

small = st.integers(1, 4)


@st.composite
def models(draw) -> SelectiveScan | StateSpaceDual:
    fields = {
        **{name: draw(small) for name in ("n_vocab", "d_model", "d_state", "d_convolution")},
        "n_layer": draw(st.integers(1, 2)),
        "norm": draw(st.sampled_from(["rmsnorm", "layernorm"])),
        "tied": draw(st.booleans()),
    }
    if draw(st.booleans()):
        own = {"d_inner": draw(small), "d_step": draw(small), "inner_norm": draw(st.booleans())}
        return SelectiveScan(**fields | own)
    n_head, d_head = 2 * draw(st.integers(1, 2)), draw(small)
    sizes = {"n_head": n_head, "d_head": d_head, "d_inner": n_head * d_head}
    return StateSpaceDual(**fields | sizes, n_group=draw(st.integers(1, 2)))


@st.composite
def runs(draw) -> RunConfig:
    return RunConfig(
        batch=draw(st.integers(1, 2)),
        length=draw(st.integers(1, 4)),
        dtype=draw(st.sampled_from(["float32", "bfloat16"])),
        state_dtype=draw(st.sampled_from(["dtype", "float32"])),
    )


few_examples = settings(max_examples=8, deadline=None)


@few_examples
@given(models(), runs())
def test_training_is_that_of_the_module(a, run):
    program = type(a).program()
    assert not first_difference(programmed(a, run, program), traced(a, run)), (a, run)
    step = training_step(program, a, run, n_steps=0)
    formula = type(a).parameters(a)
    assert +step.parameters == {name: term.total for name, term in formula.items() if term.total}


@few_examples
@given(models(), runs())
def test_inference_is_that_of_the_module(a, run):
    step, measured = inference(type(a).program(), a, run), measured_inference(a, run)
    assert step.peaks == measured["peak_inference_bytes"]
    assert step.caches == measured["cache_bytes"]
    assert +step.flops_decode == measured["flops_decode"]


@settings(max_examples=3, deadline=None)
@given(models(), runs())
def test_shallow_and_short_runs_are_a_deep_and_long_one(a, run):
    a, run = a.model_copy(update={"n_layer": 6}), run.model_copy(update={"length": 8})
    program = type(a).program()

    whole = _training_step(program, a, run, False, 2)
    assert of_any_depth(lambda a: training_step(program, a, run, True), a) == whole
