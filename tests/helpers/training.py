"""A training step of one model, predicted and measured."""

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.build import build
from modelbudget.measurement.count import count
from modelbudget.measurement.step.train import train
from modelbudget.modules.initialise import initialise, uninitialised
from modelbudget.predict.formula import formula

PREDICTED = (
    "gradient_bytes", "optimizer_bytes", "activation_bytes", "flops_forward", "flops_backward",
)  # fmt: skip
OF_STEP = (*PREDICTED, "peak_training_bytes")


def measured(
    a, run: RunConfig, device: str = "meta", quantities=OF_STEP
) -> dict[str, dict[str, int]]:
    with uninitialised():
        model = build(a, device, run.dtype)
    if device == "cpu":
        initialise(model)
    return train(model, run, set(quantities))


def predicted(a, run: RunConfig, quantities=PREDICTED) -> dict[str, dict[str, int]]:
    """Return what closed formulas say, or programs where none holds."""
    known = {quantity: formula(type(a), quantity, a, run) for quantity in quantities}
    assert all(holds for _, holds in known.values()), known
    return {
        quantity: {name: term.total for name, term in terms.items()}
        for quantity, (terms, _) in known.items()
    }


def measured_as_predicted(a, run: RunConfig, quantities=PREDICTED) -> dict[str, dict[str, int]]:
    """Measure a step, after asserting that parameters and these quantities equal their formulas."""
    counted = {name: one.parameters for name, one in count(build(a, "meta", "float32")).items()}
    assert without_zeros(counted) == {n: t.total for n, t in a.parameters(a).items() if t.total}
    found = measured(a, run, quantities=quantities)
    for quantity, values in predicted(a, run, quantities).items():
        assert without_zeros(values) == without_zeros(found[quantity]), quantity
    return found


def without_zeros(values: dict) -> dict:
    return {name: value for name, value in values.items() if value}
