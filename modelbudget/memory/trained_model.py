"""Gradients and optimizer states of any model with a loss."""

from abc import abstractmethod

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.run_values import gradient_number
from modelbudget.architecture.terms import Terms, scaled
from modelbudget.memory import optimizer


class TrainedModel(Architecture):
    """A model that can be trained: the base of the fields of all heads."""

    @classmethod
    def trained_parameters(cls, a: Fields) -> Terms:
        """Count the parameters that get a gradient: all, unless a family defines otherwise."""
        return cls.parameters(a)

    @staticmethod
    @abstractmethod
    def trained_tensors(a: Fields) -> Terms:
        """Count the parameter tensors that get a gradient; instances as of the parameters."""

    @classmethod
    def gradient_bytes(cls, a: Fields, r: Run) -> Terms:
        """One number for each parameter that gets a gradient."""
        return scaled(cls.trained_parameters(a), gradient_number(r))

    @classmethod
    def optimizer_bytes(cls, a: Fields, r: Run) -> Terms:
        """Count the bytes of the optimizer states of all parameters that get a gradient."""
        return optimizer.states(r, cls.trained_parameters(a), cls.trained_tensors(a))
