"""Configs with which classes of `transformers` are our architectures. Imports no torch."""

from typing import Any

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import division
from modelbudget.catalogue.models import Base
from modelbudget.common.mistakes import show
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.translate import config_of, fields_of
from modelbudget.sweeps.derive import named_architecture

OWN = (
    "activation_kernel", "dropout_in", "embedding_gradient", "embedding_scale", "embeddings",
    "expert_kernel", "gate_and_up", "gathered_states", "gradient_accumulation_fusion",
    "implementation",
    "logit_cap", "loss_chunks", "loss_dtype", "loss_kernel", "mask_argument", "norm_kernel",
    "outputs", "projections", "rope_layout", "rope_tables", "score_cap", "softmax_dtype",
    "targets", "weight_group",
)  # fmt: skip
"""Settings of our own modules; a class computes as its code says."""


def class_run(kind: str, run: RunConfig) -> RunConfig:
    """Return the run with the settings that affect a class.

    Raises ValueError if the weights are quantised, or devices share the model: a class is traced as
    constructed.
    """
    if division(run):
        raise ValueError(f"{division(run)}: {kind} is traced on one device")
    if run.weights != "dtype":
        raise ValueError(f"weights = '{run.weights}': {kind} is traced with weights of the dtype")
    return run.model_copy(update={name: RunConfig.model_fields[name].default for name in OWN})


def class_config(kind: str, a: Architecture) -> dict[str, Any]:
    """Return the config with which the class has the parameters of the architecture `a`.

    Raises ValueError if the class cannot have them. Fields that do not affect parameters may differ
    (the context length, the width of an MLP that no layer has), and so may equivalent spellings.
    """
    config = config_of(kind, a)
    fields = fields_of(kind, {"model_type": translations()[kind].model_type} | config)
    there = named_architecture(Base(kind, kind, type(a), fields, {}))
    if _owned(there) == _owned(a):
        return config
    mine = a.model_dump()
    differ = {n: value for n, value in there.model_dump().items() if value != mine[n]}
    listed = ", ".join(f"{n} = {show(mine[n])} (there: {show(v)})" for n, v in differ.items())
    raise ValueError(f"{kind} cannot be this architecture: {listed}")


def _owned(a: Architecture) -> dict[str, int]:
    return {name: term.total for name, term in a.parameters(a).items() if term.total}
