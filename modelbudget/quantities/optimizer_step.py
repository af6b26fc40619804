"""A step of the optimizer: its states, casts of gradients, and temporary tensors.

Source: torch/optim/adamw.py (`_single_tensor_adamw`, `_multi_tensor_adamw`, `_fused_adamw`) and
torch/optim/sgd.py.
"""

from modelbudget.architecture.run_config import RunConfig
from modelbudget.operations.elementwise import to
from modelbudget.operations.layout import at_least_float32
from modelbudget.operations.tape import Tensor, empty

N_MOMENTS = {"adamw": 2, "momentum": 1, "sgd": 0}


class OptimizerStep:
    """The optimizer of some parameters, or of their float32 copies; gradients end with its step."""

    def __init__(self, run: RunConfig, trained: list[Tensor], buffer: Tensor | None):
        """`buffer`: accumulated gradients, if the parameters have none."""
        self.run_config, self.trained, self.buffer = run, trained, buffer
        self.copies = []
        if run.master_weights:
            self.copies = [empty(p.shape, at_least_float32(run.dtype)) for p in trained]
        self.states: list[Tensor] = []

    def run(self) -> None:
        run, updated = self.run_config, self.copies or self.trained
        gradients = self._cast_gradients()
        if not self.states:
            for p in updated:
                if run.optimizer == "adamw":
                    self.states.append(empty((), "float32"))  # the number of steps
                self.states += [
                    empty(p.shape, p.dtype, p.strides) for _ in range(N_MOMENTS[run.optimizer])
                ]
        if run.optimizer == "adamw" and not run.fused:
            _update_together(updated) if run.foreach else _update_one_by_one(updated)
        for p in self.trained:
            p.grad = None
        del gradients

    def _cast_gradients(self) -> list[Tensor]:
        """Return float32 gradients of the copies, unless they have been accumulated so."""
        gradients = []
        for p in self.trained if self.copies and self.buffer is None else ():
            assert p.grad is not None
            gradients.append(to(p.grad, "float32"))
            if self.run_config.gradient_casts == "one_by_one":
                p.grad = None
        return gradients


def _update_together(updated: list[Tensor]) -> None:
    """Divide by the square roots of all second moments at once."""
    number_of_steps = empty((), "float32")
    del number_of_steps
    roots = [empty(p.shape, p.dtype) for p in updated]
    del roots


def _update_one_by_one(updated: list[Tensor]) -> None:
    """Divide by a square root, scaled; the last tensor's is live while the next is computed."""
    denominator = None
    for p in updated:
        root = empty(p.shape, p.dtype)
        scaled = empty(p.shape, p.dtype)
        del root
        denominator, scaled = scaled, None
