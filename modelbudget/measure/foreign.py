"""Calling a class of transformers: other arguments and results than our own modules have.

Importing this module does not import transformers; whoever built such a model has done so.
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
"""Names under which classes return what the next token is computed from, and accept it."""


def is_foreign(model: nn.Module) -> bool:
    """Whether the model is an instance of a class of transformers."""
    return type(model).__module__.startswith("transformers.")


def logits_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """(batch, length, n_vocab), computed as in training: no cache is kept, and nothing of a class's
    output but the logits. Raises ValueError where a class has none for each token.
    """
    return _logits(_output(model, tokens, use_cache=False)) if is_foreign(model) else model(tokens)


def use(model: nn.Module, run: RunConfig, tokens: torch.Tensor, trace: Trace) -> dict:
    """`cache_bytes`, `flops_decode` and `peak_inference_bytes` of a class, by component or phase:
    of the whole prompt, and of its last token computed from the cache of the others. The cache is
    one component, whatever layers it is of.

    Raises ValueError where the class returns no cache.
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
    """The logits of the last token, and the cache with all tokens, by its name."""
    output = _output(model, tokens, use_cache=True, logits_to_keep=1, **cache)
    found = {name: output[name] for name in CACHES if output.get(name) is not None}
    if not found:
        raise ValueError(
            f"{type(model).__name__} returns no cache: none of {', '.join(CACHES)} in its output"
        )
    return _logits(output), found


def _output(model: nn.Module, tokens: torch.Tensor, **arguments):
    """What the class returns; arguments that it does not have are left out."""
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
    """Skip the search for several texts in one sequence, of which there are none: it reads values
    of tensors, which those on `meta` do not have.
    """
    name = "transformers.masking_utils.find_packed_sequence_indices"
    with patch(name, lambda position_ids: None):
        yield


def _tensors(value) -> Iterator[torch.Tensor]:
    """All tensors in a cache: an object, or lists and dictionaries of such."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif type(value).__module__.startswith("transformers.") and hasattr(value, "__dict__"):
        yield from _tensors(vars(value))
