"""Run settings that affect a class of `transformers`. Imports no torch."""

from typing import Any, NamedTuple

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import division

OF_CODE = (
    "activation_kernel", "dropout_in", "embedding_gradient", "embedding_scale", "embeddings",
    "expert_kernel", "expert_weight_block", "expert_weight_group", "gate_and_up",
    "gathered_states", "gradient_accumulation_fusion", "implementation",
    "logit_cap", "loss_chunks", "loss_dtype", "loss_kernel", "mask_argument", "norm_kernel",
    "outputs", "projections", "rope_dtype", "rope_layout", "rope_tables", "score_cap",
    "softmax_dtype", "targets", "weight_group",
)  # fmt: skip
"""Settings of our own modules; a class computes as its code says."""
LIMIT = 100_000
"""Operations of one phase of a trace. A step of 128 layers has fewer, a loop over tokens more."""


class ClassRun(NamedTuple):
    """One class in one run, with the quantities to trace."""

    class_name: str
    config: dict[str, Any]
    run: RunConfig
    quantities: frozenset[str]


def class_run(class_name: str, run: RunConfig) -> RunConfig:
    """Return the run with the settings that affect a class.

    Raises ValueError if the weights are quantised, there is an adapter, or devices share the model:
    a class is traced as constructed.
    """
    whole_class(class_name, run)
    if run.weights != "dtype":
        raise ValueError(
            f"weights = '{run.weights}': {class_name} is traced with weights of the dtype"
        )
    if run.adapter != "none":
        raise ValueError(f"adapter = '{run.adapter}': {class_name} is traced without adapters")
    return run.model_copy(update={name: RunConfig.model_fields[name].default for name in OF_CODE})


def whole_class(class_name: str, run: RunConfig) -> None:
    """Raise ValueError if devices share the model of a run: a class is built on one device."""
    if division(run):
        raise ValueError(f"{division(run)}: {class_name} is traced on one device")
