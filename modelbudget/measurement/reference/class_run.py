"""Run settings that affect a class of `transformers`. Imports no torch."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from modelbudget.architecture.adapter_methods import ALL_LINEAR, OF_LAYERS, why_not_run
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import division
from modelbudget.architecture.stored_formats import OF_EACH_LAYER, converts_class
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.common.validation_messages import show
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.peft_classes import peft_classes

OF_FORMAT = ("kept_in_dtype", "weights_of", "expert_weights", "vocabulary_dtype")
"""Settings of which matrices have a format."""
OF_TRAINED = ("trained", "trained_from_layer", "modules_to_save")
LIMIT = 100_000
"""Operations of one phase of a trace. A step of 128 layers has fewer, a loop over tokens more."""


class ClassRun(NamedTuple):
    """One class in one run, with the quantities to trace."""

    class_name: str
    config: dict[str, Any]
    run: RunConfig
    quantities: frozenset[str]


def why_not_traced(class_name: str, run: RunConfig) -> str | None:
    """Return why a class is not traced in a run; None if it is."""
    try:
        class_run(class_name, run)
    except ValueError as error:
        return str(error)
    return None


def class_run(class_name: str, run: RunConfig) -> RunConfig:
    """Return the run with the settings that affect a class.

    Raises ValueError if it is not traced with the run's weights or PEFT's adapter, or devices share
    the model.
    """
    whole_class(class_name, run)
    if why := _why_not_quantised(class_name, run) or why_not_trained(class_name, run):
        raise ValueError(why)
    of_code, fields = implementations()[TRANSFORMERS].of_our_modules, RunConfig.model_fields
    return run.model_copy(update={name: fields[name].default for name in of_code})


def _why_not_quantised(class_name: str, run: RunConfig) -> str | None:
    """Return why a class is not traced with the weights of a run; None if it is.

    Files that were quantised before name their layers themselves.
    """
    if run.weights == "dtype":
        return None
    if not converts_class(run.weights):
        return (
            f"weights = '{run.weights}': {class_name} is traced with weights of the dtype, "
            f"{', '.join(OF_EACH_LAYER)}"
        )
    return _why_not_default(class_name, run, OF_FORMAT)


def _why_not_default(class_name: str, run: RunConfig, names: Iterable[str]) -> str | None:
    """Return which of some settings a class is not traced with; None if all have their default."""
    for name in names:
        value, default = getattr(run, name), RunConfig.model_fields[name].default
        if value != default:
            return f"{name} = {show(value)}: {class_name} is traced with {show(default)}"
    return None


def why_not_trained(class_name: str, run: RunConfig) -> str | None:
    if (why := _why_not_default(class_name, run, OF_TRAINED)) or run.adapter == "none":
        return why
    if run.adapter not in OF_LAYERS or why_not_run(run):
        return f"adapter = '{run.adapter}': {class_name} is traced with adapters of layers alone"
    targets, of_peft = run.adapter_targets.split(), peft_classes()
    known = translations().get(class_name)
    model_type = known.model_type if known else ""
    if of_peft.reaches_experts(model_type, targets):
        return (
            f"adapter_targets = {run.adapter_targets}: {class_name} is traced with frozen experts"
        )
    if ALL_LINEAR in targets and model_type in of_peft.mixers_refused:
        return f"adapter_targets = {ALL_LINEAR}: PEFT refuses out_proj of {class_name}"
    return None


def whole_class(class_name: str, run: RunConfig) -> None:
    """Raise ValueError if devices share the model of a run: a class is built on one device."""
    if division(run):
        raise ValueError(f"{division(run)}: {class_name} is traced on one device")
