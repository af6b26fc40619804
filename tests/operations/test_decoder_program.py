"""Programs of decoders against traces of the torch modules: every allocation, in order."""

from helpers.allocations import first_difference, programmed, traced
from helpers.strategies import decoders_that_run
from hypothesis import given, settings

from modelbudget.operations.part import NoProgramError


@settings(max_examples=40, deadline=None)
@given(decoders_that_run())
def test_every_allocation_of_a_program_is_the_traces(decoder_and_run):
    """A sum may be right by accident; a thousand allocations in order, with live bytes, cannot."""
    a, run = decoder_and_run
    if run.backend == "cpu":
        run = run.model_copy(update={"backend": "gpu", "attention_kernel": "math"})
    try:
        of_program = programmed(a, run)
    except NoProgramError:
        return
    assert not first_difference(of_program, traced(a, run)), (a, run)
