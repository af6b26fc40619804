"""Calls of `transformers` classes, whose arguments and outputs differ from those of our modules.

Importing this module does not import transformers.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import nn

from modelbudget.architecture.run_config import RunConfig
from modelbudget.measure.backend import backend
from modelbudget.measure.trace import Trace

CACHES = ("past_key_values", "cache_params", "state", "mems")
"""Names of the cache among the arguments and outputs of classes."""


def is_foreign(model: nn.Module) -> bool:
    """Whether the model is an instance of a `transformers` class."""
    return type(model).__module__.startswith("transformers.")


def logits_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return logits (batch, length, n_vocab), computed as in training, without a cache.

    Raises ValueError if the class does not return logits for each token.
    """
    return _logits(_output(model, tokens, use_cache=False)) if is_foreign(model) else model(tokens)


def use(model: nn.Module, run: RunConfig, tokens: torch.Tensor, trace: Trace) -> dict:
    """Measure `cache_bytes`, `flops_decode` and `peak_inference_bytes`, by component or phase.

    Runs the whole prompt, and then its last token with the cache of the others. The cache of all
    layers is one component. Raises ValueError if the class returns no cache.
    """
    with torch.no_grad(), backend(run.backend, run.attention_kernel):
        with trace.watching("setup"):
            peaks = {"setup": trace.peak}
        with trace.watching("prefill"):
            _, cache = _next(model, tokens, {})
        peaks["prefill"] = trace.peak
        storages = [tensor.untyped_storage() for tensor in _tensors(list(cache.values()))]
        n_bytes = sum({storage._cdata: storage.nbytes() for storage in storages}.values())
        del cache, storages
        with trace.watching("all but the last token"):
            before = tokens[:, :-1]
            cache = _next(model, before, {})[1] if before.numel() else {}
        with trace.watching("decode"):
            _next(model, tokens[:, -1:], cache)
        peaks["decode"] = trace.peak
    return {
        "cache_bytes": {"cache": n_bytes},
        "flops_decode": dict(trace.flops["decode"]),
        "peak_inference_bytes": peaks,
    }


def _next(model: nn.Module, tokens: torch.Tensor, cache: dict) -> tuple[torch.Tensor, dict]:
    """Return the logits of the last token, and the cache of all tokens by its argument name."""
    output = _output(model, tokens, use_cache=True, logits_to_keep=1, **cache)
    found = {name: output[name] for name in CACHES if output.get(name) is not None}
    if not found:
        raise ValueError(
            f"{type(model).__name__} returns no cache: none of {', '.join(CACHES)} in its output"
        )
    return _logits(output), found


def _output(model: nn.Module, tokens: torch.Tensor, **arguments):
    """Call the model without the arguments that its class does not have."""
    known = inspect.signature(model.forward).parameters
    with _without_packed_sequences():
        return model(tokens, **{n: value for n, value in arguments.items() if n in known})


def _logits(output) -> torch.Tensor:
    logits = getattr(output, "logits", None)
    if logits is None or logits.dim() != 3:
        shape = "no logits" if logits is None else f"logits of shape {tuple(logits.shape)}"
        raise ValueError(
            f"{type(output).__name__} has {shape}; a language model has (batch, length, n_vocab)"
        )
    return logits


@contextmanager
def _without_packed_sequences() -> Iterator[None]:
    """Switch off the check for packed sequences, which reads values of tensors on meta."""
    name = "transformers.masking_utils.find_packed_sequence_indices"
    with patch(name, lambda position_ids: None):
        yield


def _tensors(value) -> Iterator[torch.Tensor]:
    """Yield all tensors in a cache: an object, or nested lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif type(value).__module__.startswith("transformers.") and hasattr(value, "__dict__"):
        yield from _tensors(vars(value))
