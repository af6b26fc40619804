"""Programs of decoders against traces of the torch modules: every allocation, in order."""

from helpers.allocations import first_difference, programmed, traced
from helpers.strategies import decoders_that_run
from helpers.tiers import examples
from hypothesis import given, settings
from hypothesis.strategies import integers

from modelbudget.architecture.run_config import RunConfig
from modelbudget.components.decoder.decoder_program import program
from modelbudget.families.decoder import Decoder
from modelbudget.operations.part import NoProgramError
from modelbudget.quantities.depth import of_any_depth
from modelbudget.quantities.inference_step import inference
from modelbudget.quantities.training_step import training_step


@settings(max_examples=examples(40), deadline=None)
@given(decoders_that_run())
def test_every_allocation_of_a_program_is_the_traces(decoder_and_run):
    """A sum may be right by accident; a thousand allocations in order, with live bytes, cannot."""
    a, run = decoder_and_run
    assert not first_difference(programmed(a, run), traced(a, run)), (a, run)


@settings(max_examples=examples(25), deadline=None)
@given(decoders_that_run(), integers(6, 14))
def test_a_shallow_run_is_a_deep_one(decoder_and_run, n_layer):
    """Catches a period that is cut at the wrong layer, and a peak in the middle of the model."""
    a, run = decoder_and_run
    a = a.model_copy(update={"n_layer": n_layer})
    for reader, n_end in ((training_step, 2), (inference, 1)):
        try:
            whole = reader(program, a, run)
        except NoProgramError:
            continue
        n_layers = []

        def shallow(a, run=run, reader=reader, n_layers=n_layers):
            n_layers.append(a.n_layer)
            return reader(program, a, run)

        assert of_any_depth(shallow, a, n_end) == whole
        assert len(n_layers) == 1 or max(n_layers) < n_layer


def test_a_peak_in_a_layer_between_the_first_and_the_last():
    """Only here is the peak in a layer that a shallow run leaves out: in the second.

    Gradients of MLPs add up backwards, and the first layer's attention, being frozen, needs none.
    """
    sizes = {"n_vocab": 5, "d_model": 8, "n_head": 2, "n_kv_head": 2, "d_head": 8, "d_ff": 64}
    a = Decoder(**sizes, n_layer=12, n_ctx=16, tied=False)
    run = RunConfig(length=16, trained="mlp", recompute="full", attention_kernel="math")
    of_few = of_any_depth(lambda a: training_step(program, a, run), a)
    assert of_few.peaks == training_step(program, a, run).peaks
