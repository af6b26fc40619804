"""Constraints over an architecture and its run together: kernels, lengths, options."""

from functools import cache

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import Constraint, first_mistake, shown
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_rules import content, rules

SWITCHES = {
    "dropout": "not dropout",
    "gradient_accumulation_fusion": "not gradient_accumulation_fusion",
    "attention_kernel": "attention_kernel != 'written_out'",
    "padding": "not padding",
}
"""For some switches, what holds where they are off; for others, their default."""
OTHERS = {
    "attention_kernel": "flash, efficient or math",
    "padding": "false, or true with implementation: transformers, without an adapter",
}
"""What is allowed besides the default."""


@cache
def run_constraints(family: type[Architecture]) -> list[Constraint]:
    """Return the constraints over the fields of a family and of its run together."""
    switches = [
        Constraint(
            SWITCHES.get(name) or f"{name} == {RunConfig.model_fields[name].default!r}",
            f"{name} = {{{name}}}: the family {family.name()} has no such setting; "
            f"allowed: {OTHERS.get(name) or shown(RunConfig.model_fields[name].default)}",
        )
        for name in content()["switches"]
        if name not in family.switches_of_run
    ]
    fields = family.model_fields.keys() | RunConfig.model_fields.keys()
    # Without a formula torch decides for each call.
    about_shape = rules("model and run") if family.has_formula else ()
    shared = (constraint for constraint in about_shape if constraint.names <= fields)
    return [*switches, *shared, *family.constraints_of_run]


def run_mistake(architecture: Architecture, run: RunConfig) -> str | None:
    """Return why the architecture does not allow the run, if it does not."""
    return first_mistake(run_constraints(type(architecture)), vars(architecture) | vars(run))
