"""Quantities that quantised weights leave undefined: those of their training."""

from collections.abc import Set

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import OF_CACHE, OF_QUANTISED, OF_STORED
from modelbudget.architecture.stored_formats import FORMATS, converts_class, file_is_known
from modelbudget.sweeps.quantity_names import (
    OF_ALLOCATOR,
    OF_CONVENTION,
    OF_INFERENCE,
    OF_PROCESS,
    OF_TRAINING,
)

REFUSED = "quantised weights: "
"""Beginning of the reason for a quantity that is not defined, which is no failure."""


def refused(architecture: Architecture | None, run: RunConfig, wanted: Set[str]) -> dict[str, str]:
    """Return the quantities that quantised weights leave undefined, each with the reason.

    Without an architecture, of a class that has none.
    """
    unknown = set[str]()
    setting = f"{REFUSED}vocabulary_dtype = {run.vocabulary_dtype}"
    if run.vocabulary_dtype != "dtype":
        unknown = wanted & OF_PROCESS
        if architecture is None or "vocabulary_dtype" not in architecture.switches_of_run:
            unknown = wanted - {"parameters", *OF_CONVENTION}
    line = f"{setting}: not measured on a real CPU, nor of classes"
    return dict.fromkeys(unknown, line) | _of_format(architecture, run, wanted)


def _of_format(
    architecture: Architecture | None, run: RunConfig, wanted: Set[str]
) -> dict[str, str]:
    if run.weights == "dtype":
        return {}
    setting = f"{REFUSED}weights = {run.weights}"
    reasons = dict.fromkeys(wanted & OF_PROCESS, f"{setting}: not measured on a real CPU")
    if run.adapter == "none":
        of_step = (OF_TRAINING | OF_ALLOCATOR) & wanted - {*OF_QUANTISED}
        reasons |= dict.fromkeys(of_step, f"{setting} are frozen; allowed with adapter: lora")
    if run.weights == "unknown":
        unknown = wanted - {"parameters", *OF_QUANTISED, *OF_CONVENTION}
        reasons |= dict.fromkeys(unknown, f"{setting}: the bytes are not known")
        if run.cache_dtype == "unknown":
            of_cache = f"{setting}: the format of the cache is not known"
            reasons |= dict.fromkeys(wanted & {*OF_CACHE}, of_cache)
    if why := _why_without_bytes(architecture, run):
        of_weights = wanted & ({*OF_STORED} | OF_INFERENCE - {*OF_CACHE, "flops_decode"})
        is_other = architecture is not None and not architecture.lists_matrices
        if run.vocabulary_dtype == "int8" or run.modules_to_save != "none" or is_other:
            of_weights |= wanted & (OF_TRAINING | OF_ALLOCATOR)
        reasons |= dict.fromkeys(of_weights, f"{setting}: {why}")
    if not file_is_known(run.weights):
        library = FORMATS[run.weights].library.library
        reasons |= dict.fromkeys(
            wanted & {"file_bytes"}, f"{setting}: not known what {library} writes"
        )
    if run.adapter != "none":
        reasons |= dict.fromkeys(wanted & {"file_bytes"}, f"{setting}: an adapter has its own file")
    return reasons


def _why_without_bytes(architecture: Architecture | None, run: RunConfig) -> str:
    is_class = architecture is None or not architecture.has_formula
    if run.weights == "unknown" or (is_class and not converts_class(run.weights)):
        return "the bytes are not known"
    return architecture.why_not_quantised(run) if architecture else ""
