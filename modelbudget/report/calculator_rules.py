"""Constraints of the calculator, as expressions that its script evaluates."""

from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.evaluators import graph, vega_constraints
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_constraints
from modelbudget.architecture.run_values import MASKS
from modelbudget.families.decoder import Decoder
from modelbudget.report.calculator_choices import CHOICES, OF_RUN, OPTIONS
from modelbudget.sweeps.device_defaults import KERNEL, refused_kernels

SWITCHES = [
    name
    for kind in (Decoder, RunConfig)
    for name, field in kind.model_fields.items()
    if field.annotation is bool
]


def kernels() -> list[tuple[str, list[str]]]:
    """Return the attention kernels in torch's order, and why the default is another one.

    The reasons are Vega expressions as those of `rules`, which have more of them.
    """
    refused = refused_kernels(Decoder)  # pyright: ignore[reportArgumentType]
    return [
        (
            name,
            [
                vega_constraints.mistake(constraint, SWITCHES)
                for constraint in refused.get(name, ())
            ],
        )
        for name in OPTIONS[KERNEL]
    ]


def rules() -> list[dict]:
    """Return every constraint of a decoder and its run, as `mistake` and `fields`.

    `mistake` is a Vega expression whose value is the message, or empty if the constraint holds;
    `fields` are the fields that it reads.
    """
    # A class is hashable even where its instances seem not to be.
    checks = [*Decoder.all_constraints(), *RunConfig.all_constraints(), *run_constraints(Decoder)]  # pyright: ignore[reportArgumentType]
    # Checks that are not expressions are about layers without mixer and MLP; no model here has any.
    constraints = [check for check in checks if isinstance(check, Constraint)]
    absent = [
        Constraint(f"{n} == {value}", f"{n} = {{{n}}}: not computed on this page; allowed: {value}")
        for n, value in CHOICES.absent.items()
    ]
    by_math = Constraint(
        f"attention_kernel == 'math' or position not in {MASKS} and not sinks",
        "attention_kernel = '{attention_kernel}': what position: {position} or sinks add to scores "
        "is computed on this page by math alone; allowed: math",
    )
    upper_bounds = [  # below the limit of exact numbers in a browser
        Constraint(f"{name} <= {rule.le}", f"{name} = {{{name}:,}}: must be at most {rule.le:,}")
        for record, names in ((Decoder, Decoder.numeric()), (RunConfig, OF_RUN))
        for name in names
        for rule in record.model_fields[name].metadata
        if hasattr(rule, "le") and rule.le < graph.EXACT_BELOW
    ]
    return [
        {
            "mistake": vega_constraints.mistake(constraint, SWITCHES),
            "fields": sorted(constraint.names),
        }
        for constraint in [*upper_bounds, *absent, by_math, *constraints]
    ]
