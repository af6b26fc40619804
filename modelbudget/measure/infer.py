"""Use of a model, watched: the prompt at once, then a token with what was remembered."""

from collections import Counter
from contextlib import ExitStack

import torch
from torch import nn

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import join
from modelbudget.measure.backend import backend
from modelbudget.measure.count import component_of
from modelbudget.measure.foreign import is_foreign, use
from modelbudget.measure.trace import Trace
from modelbudget.measure.train import Values
from modelbudget.modules.cache import Cache, caching

OF_TOKENS = {"flops_decode", "peak_inference_bytes"}
"""Quantities that tokens must be read for; caches are there before the first."""


def infer(model: nn.Module, run: RunConfig, quantities: set[str]) -> Values:
    """Read a prompt of `length` tokens into caches that hold just as many, then compute the last
    token once more from what they remember of the others. (A recurrent state has it twice then,
    which changes no size.) Where no quantity asks for more than the caches, these are made and
    nothing is read.

    Bytes of the caches and operations of that token by component, peaks by phase.
    """
    trace = Trace(model)
    device = next(model.parameters()).device
    model.eval()
    if is_foreign(model):
        tokens = torch.zeros(run.batch, run.length, dtype=torch.long, device=device)
        return use(model, run, tokens, trace)
    with ExitStack() as stack:
        stack.enter_context(backend(run.backend, run.attention_kernel))
        stack.callback(model.head.register_forward_pre_hook(last).remove)
        with trace.watching("setup"):
            caches = stack.enter_context(caching(model, run.batch, run.length))
            tokens = torch.zeros(run.batch, run.length, dtype=torch.long, device=device)
        held: Counter[str] = Counter()
        for path, cache in caches.items():
            n_bytes = sum(tensor.untyped_storage().nbytes() for tensor in cache.tensors)
            held[component_of(join(path, cache.name, "weight"))] += n_bytes
        values = {"cache_bytes": dict(+held), "peak_inference_bytes": {"setup": trace.peak}}
        if not quantities & OF_TOKENS:
            return values
        with trace.watching("prefill"):
            model(tokens)
        peaks = {"prefill": trace.peak}
        for cache in caches.values():
            if isinstance(cache, Cache):
                cache.length -= 1
        with trace.watching("decode"):
            model(tokens[:, -1:])
        peaks["decode"] = trace.peak
    return values | {
        "flops_decode": dict(trace.flops["decode"]),
        "peak_inference_bytes": peaks,
    }


def last(_, states: tuple):
    """The states that the head reads: those of the last token, copied out of all."""
    return tuple(x[:, -1:].clone() for x in states)
