"""Gradients and optimizer states of any model with a loss."""

from collections.abc import Callable
from typing import ClassVar

from modelbudget.architecture.base import OF_PEAK, Architecture
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.optimizers import optimizer_named
from modelbudget.architecture.run_values import gradient_number
from modelbudget.architecture.terms import Terms, scaled
from modelbudget.memory import optimizer_states


class TrainedModel(Architecture):
    """A model that can be trained: the base of the fields of all heads."""

    trained_tensors: ClassVar[Callable[[Fields], Terms]]
    """Count the parameter tensors that get a gradient; instances as of the parameters.

    A family without it has no closed formula of gradients and optimizer states.
    """

    @classmethod
    def has_formula_for(cls, quantity: str, a: Fields, r: Run):
        """1 where the formula of a run's quantity holds, else 0; see `Architecture`."""
        if quantity in ("gradient_bytes", "optimizer_bytes") and not hasattr(
            cls, "trained_tensors"
        ):
            return 0
        is_peak = quantity in ("peak_training_bytes", *OF_PEAK)
        if is_peak and not optimizer_states.is_known(r):
            return 0
        if (is_peak or quantity == "optimizer_bytes") and not cls.knows_sizes(a, r):
            return 0
        holds = super().has_formula_for(quantity, a, r)
        if not is_peak and quantity != "gradient_bytes":
            return holds
        if optimizer_named(r.optimizer).updates_in == "backward":
            return 0
        return holds * (1 - r.optimizer_in_backward)

    @classmethod
    def knows_sizes(cls, a: Fields, r: Run) -> bool:
        """Whether the sizes that the optimizer reads of each parameter tensor are known."""
        return optimizer_named(r.optimizer).follows_numbers

    @classmethod
    def trained_parameters(cls, a: Fields) -> Terms:
        """Count the parameters that get a gradient: all, unless a family defines otherwise."""
        return cls.parameters(a)

    @classmethod
    def gradient_bytes(cls, a: Fields, r: Run) -> Terms:
        """One number for each parameter that gets a gradient."""
        return scaled(cls.trained_parameters(a), gradient_number(r))

    @classmethod
    def optimizer_bytes(cls, a: Fields, r: Run) -> Terms:
        """Count the bytes of the optimizer states of all parameters that get a gradient."""
        return optimizer_states.states(r, cls.trained_parameters(a), cls.trained_tensors(a))
