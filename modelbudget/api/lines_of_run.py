"""Lines of an answer about its run: how many parameters are trained, how weights are read."""

from collections.abc import Mapping

from modelbudget.api.breakdown import Breakdown
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import is_peak
from modelbudget.operations.tape import BYTES


def line_of_adapter(run: RunConfig, breakdowns: Mapping[str, Breakdown]) -> tuple[str, ...]:
    """Return a line with the number of trained parameters, if there is an adapter."""
    if run.adapter == "none" or "gradient_bytes" not in breakdowns:
        return ()
    dtype = run.dtype if run.adapter_dtype == "dtype" else run.adapter_dtype
    n_trained = breakdowns["gradient_bytes"].total // BYTES[dtype]
    return (
        f"adapter {run.adapter}: {n_trained:,} parameters in {dtype} are trained "
        f"(adapter_rank {run.adapter_rank}, adapter_targets {run.adapter_targets})",
    )


def line_of_weights(run: RunConfig, breakdowns: Mapping[str, Breakdown]) -> tuple[str, ...]:
    """Say how quantised weights are read, where a peak depends on that."""
    if run.weights == "dtype" or not any(is_peak(quantity) for quantity in breakdowns):
        return ()
    return (
        f"weights {run.weights}: each product reads a copy of its matrix in {run.dtype}, freed "
        "after it; a kernel that reads the stored matrix needs less",
    )
