"""Recurrent state: tensors of one size whatever the number of tokens."""

from modelbudget.architecture.formula_arguments import Run
from modelbudget.operations.memory_layout import at_least_float32
from modelbudget.operations.tape import Active, empty


def declare(*shapes, dtype: str | None = None) -> "State | None":
    """Declare the state of the part that is being made; None in training.

    `shapes`: of the tensors of one sequence.
    """
    tape = Active.tape
    if tape.cache_length is None:
        return None
    batch, _ = tape.cache_length
    state = State([empty((batch, *shape), dtype) for shape in shapes])
    tape.caches.append((tape.scope, state))
    return state


class State:
    """Tensors (batch, …) that each token replaces, in place."""

    def __init__(self, tensors):
        self.tensors = tensors

    def clear(self) -> None:
        """Begin with the same tensors."""

    def forget_last(self) -> None:
        """Do nothing: a state that sees a token again has the same size."""


def dtype_of(r: Run) -> str:
    """Return the dtype of states that `state_dtype` sets."""
    return at_least_float32(r.dtype) if r.state_dtype == "float32" else r.dtype
