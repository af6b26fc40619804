"""A training step of one model, predicted and measured."""

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.build import build
from modelbudget.measurement.train import train
from modelbudget.modules.initialise import initialise, uninitialised

PREDICTED = (
    "gradient_bytes", "optimizer_bytes", "activation_bytes", "flops_forward", "flops_backward",
)  # fmt: skip


def measured(a, run: RunConfig, device: str = "meta") -> dict[str, dict[str, int]]:
    with uninitialised():
        model = build(a, device, run.dtype)
    if device == "cpu":
        initialise(model)
    return train(model, run, set(PREDICTED))


def predicted(a, run: RunConfig) -> dict[str, dict[str, int]]:
    return {
        quantity: {name: term.total for name, term in getattr(a, quantity)(a, run).items()}
        for quantity in PREDICTED
    }


def without_zeros(values: dict) -> dict:
    return {name: value for name, value in values.items() if value}
