"""A step of the optimizer: its states, casts of gradients, and temporary tensors.

Source: torch/optim/adamw.py (`_single_tensor_adamw`, `_multi_tensor_adamw`, `_fused_adamw`) and
torch/optim/sgd.py.
"""

from collections import Counter
from collections.abc import Iterator

from modelbudget.architecture.run_config import RunConfig
from modelbudget.operations.elementwise import to
from modelbudget.operations.layout import at_least_float32
from modelbudget.operations.tape import Active, Tensor, empty

N_MOMENTS = {"adamw": 2, "momentum": 1, "sgd": 0}


class OptimizerStep:
    """The optimizer of some parameters, or of their float32 copies; gradients end with its step."""

    def __init__(self, run: RunConfig, trained: list[Tensor], buffer: Tensor | None):
        """`buffer`: accumulated gradients, if the parameters have none."""
        self.run_config, self.trained, self.buffer = run, trained, buffer
        self.copies = trained
        if run.master_weights:
            self.copies = [empty(p.shape, at_least_float32(run.dtype)) for p in trained]
        self.states: list[tuple[str, Tensor]] = []
        """Tensors that are kept from step to step, with their component."""

    def run(self) -> None:
        run = self.run_config
        pairs = zip(self.trained, self.copies, strict=True)
        self.pairs = [
            (p, copy) for p, copy in pairs if self.buffer is not None or p.grad is not None
        ]
        """Parameters that have a gradient, and what is updated for them."""
        gradients = self._cast_gradients() if run.master_weights and self.buffer is None else []
        if not self.states:
            for (p, _), updated in zip(self.pairs, self._updated(), strict=True):
                if run.optimizer == "adamw":  # the number of steps
                    self.states.append((p.name, empty((), "float32")))
                for _ in range(N_MOMENTS[run.optimizer]):
                    moment = empty(updated.shape, updated.dtype, updated.strides)
                    self.states.append((p.name, moment))
        if run.optimizer == "adamw" and run.foreach:
            self._divide_together()
        elif run.optimizer == "adamw" and not run.fused:
            self._divide_one_by_one()
        for p in self.trained:
            p.grad = None
        del gradients

    def bytes_by_component(self) -> Counter[str]:
        """Return the bytes of states and float32 copies."""
        kept = list(self.states)
        if self.run_config.master_weights:
            kept += [(p.name, copy) for p, copy in zip(self.trained, self.copies, strict=True)]
        n_bytes: Counter[str] = Counter()
        for name, tensor in kept:
            n_bytes[name] += tensor.storage.n_bytes
        return n_bytes

    def _updated(self) -> Iterator[Tensor]:
        """Yield what is updated, each while the tape names the layer of its parameter."""
        for p, updated in self.pairs:
            assert p.node is not None
            Active.tape.layer = p.node.layer
            yield updated
        Active.tape.layer = None

    def _cast_gradients(self) -> list[Tensor]:
        """Return float32 gradients."""
        gradients = []
        for (p, _), _ in zip(self.pairs, self._updated(), strict=True):
            assert p.grad is not None
            gradients.append(to(p.grad, "float32"))
            if self.run_config.gradient_casts == "one_by_one":
                p.grad = None
        return gradients

    def _divide_together(self) -> None:
        """Divide by the square roots of all second moments at once."""
        number_of_steps = empty((), "float32")
        del number_of_steps
        roots = [empty(p.shape, p.dtype) for p in self._updated()]
        del roots

    def _divide_one_by_one(self) -> None:
        """Divide by a scaled square root, which is live until the next has been computed."""
        denominator = None
        for p in self._updated():
            root = empty(p.shape, p.dtype)
            scaled = empty(p.shape, p.dtype)
            del root
            denominator, scaled = scaled, None
