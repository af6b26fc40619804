"""The tape of a run: its dtype, the format of weights, and the adapter."""

from modelbudget.architecture.run_config import RunConfig
from modelbudget.components.adapter import LowRankAdapter
from modelbudget.components.weight_formats import StoredWeights
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.tape import Tape

WITHOUT_PROGRAM = ("unknown", "mxfp4")
"""Formats whose bytes are not known, or that convert experts alone."""


def tape_of(run: RunConfig, lists_allocations: bool) -> Tape:
    """Return a tape on which a model of a run is made. Raises NoProgramError."""
    tape = Tape(run.dtype, lists_allocations)
    if run.weights in WITHOUT_PROGRAM:
        raise NoProgramError(f"weights: {run.weights}")
    if run.weights != "dtype":
        tape.weight_format = StoredWeights(run)
    if run.adapter != "none":
        tape.adapter = LowRankAdapter(run)
    return tape
