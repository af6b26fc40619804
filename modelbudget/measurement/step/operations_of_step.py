"""Which operations a step computes with: those of a backend by name, or a GPU's own.

What is traced runs the operations of a GPU or a CPU by name on any device, and casts that stand in
for autocast. Without a trace, a CUDA device has nothing stand in for torch: it chooses the kernel
among those that the run allows, and casts itself.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measurement.trace.backend import backend, kernels, of_module, written_out
from modelbudget.measurement.trace.emulated_autocast import autocast

OF_LIBRARIES = ("modelbudget.", "torch.", "transformers.")
TARGETS = ("targets", "labels")
"""Names of the argument with targets in `forward`."""


def is_user_module(model: nn.Module) -> bool:
    """Whether the class of a model is neither ours nor one of torch or `transformers`."""
    return not type(model).__module__.startswith(OF_LIBRARIES)


def takes_targets(model: nn.Module) -> bool:
    """Whether the module computes its own loss."""
    return is_user_module(model) and _argument(model) is not None


def loss_and_outputs(
    model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the loss that the module computes, and its other outputs.

    Raises ValueError if no output is a tensor without dimensions.
    """
    outputs = list(_tensors(model(tokens, **{_argument(model) or "": targets})))
    losses = [output for output in outputs if output.dim() == 0]
    if not losses:
        raise ValueError(
            f"{type(model).__name__} returns no loss: no output of its forward with "
            f"{_argument(model)} is a tensor without dimensions"
        )
    return losses[0], [output for output in outputs if output is not losses[0]]


def logits_of(output) -> torch.Tensor:
    """Return the logits (batch, length, n_vocab) among the outputs. Raises ValueError if none."""
    logits = next((tensor for tensor in _tensors(output) if tensor.dim() == 3), None)
    if logits is None:
        raise ValueError("the module returns no logits (batch, length, n_vocab)")
    return logits


def _argument(model: nn.Module) -> str | None:
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in TARGETS if name in parameters), None)


def _tensors(output) -> Iterator[torch.Tensor]:
    if isinstance(output, Mapping):
        output = tuple(output.values())
    for item in output if isinstance(output, tuple | list) else (output,):
        if isinstance(item, torch.Tensor):
            yield item


DISPATCHED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""What torch may run where a run has `flash`: the first that takes the call."""
ALLOWED = {"flash": DISPATCHED, "efficient": DISPATCHED[1:], "math": DISPATCHED[2:]}
"""By attention_kernel; without cuDNN, which torch may prefer on capability 9.0 and later."""


def is_transformers_class(model: nn.Module) -> bool:
    return type(model).__module__.startswith("transformers.")


@contextmanager
def operations(model: nn.Module, run: RunConfig, caches: bool = True) -> Iterator[None]:
    """Compute as the run asks inside this context; `caches`: casts of weights, in a forward pass.

    A class of `transformers` and a user's module compute their norms, activations and loss as they
    are written.
    """
    with _by_name(model, run), autocast(run, caches):
        yield


def _by_name(model: nn.Module, run: RunConfig):
    if is_transformers_class(model):
        return backend(run.backend, run.attention_kernel)
    if is_user_module(model):
        return of_module(model, run.backend, run.attention_kernel)
    return kernels(run)


@contextmanager
def operations_of_device(
    model: nn.Module, run: RunConfig, is_forward: bool = True
) -> Iterator[None]:
    """Compute as the run asks without a trace; torch's backward pass casts by itself."""
    with ExitStack() as stack:
        if not next(model.parameters()).is_cuda:
            stack.enter_context(operations(model, run, is_forward))
        else:
            if not (is_transformers_class(model) or is_user_module(model)):
                stack.enter_context(written_out(run))
            if run.attention_kernel in ALLOWED:
                stack.enter_context(sdpa_kernel(ALLOWED[run.attention_kernel]))
            if run.autocast != "none" and is_forward:
                stack.enter_context(torch.autocast("cuda", getattr(torch, run.autocast)))
        yield
