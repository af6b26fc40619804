"""Traces of inference: prefill of a prompt, then one token with the cache; or one forward pass."""

from collections import Counter
from collections.abc import Callable, Set
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import target_tokens
from modelbudget.architecture.terms import component_of, join
from modelbudget.measurement.build import input_of
from modelbudget.measurement.measured import Values
from modelbudget.measurement.step.module_settings import arrange
from modelbudget.measurement.step.operations_of_step import (
    is_transformers_class,
    is_user_module,
    operations,
)
from modelbudget.measurement.step.transformers_step import (
    generates_no_text,
    infer_class,
    output_of,
)
from modelbudget.measurement.trace.module_trace import Trace
from modelbudget.modules.cache import Cache, caching
from modelbudget.modules.encoder import EncoderModel
from modelbudget.modules.encoder_decoder import EncoderDecoderModel

OF_TOKENS = {"flops_decode", "peak_inference_bytes"}
"""Quantities that need a forward pass; caches are allocated before it."""


def reads_all_at_once(model: nn.Module) -> bool:
    """Whether the inference of a model is one forward pass over all tokens, without a cache."""
    if isinstance(model, EncoderModel):
        return not model.causal
    return generates_no_text(model)


def infer(
    model: nn.Module,
    run: RunConfig,
    quantities: Set[str],
    trace: Trace | None = None,
    computing: Callable = operations,
) -> Values:
    """Prefill caches with a prompt of `length` tokens, then decode its last token again.

    (A recurrent state has then seen it twice, which changes no size.) If only caches are asked for,
    they are allocated and nothing runs. An encoder has one forward pass over all tokens instead;
    with a decoder behind it, prefill encodes a source and decodes the first token of a target.

    `computing`: the context of all passes. Returns bytes of the caches and FLOPs of that token by
    component, and peaks by phase.
    """
    arrange(model, run)
    trace = trace or Trace(model)
    trace.of_backend(run.backend)
    model.eval()
    if reads_all_at_once(model):
        return _one_pass(model, run, trace, quantities, computing)
    if is_transformers_class(model) or is_user_module(model):
        return infer_class(model, run, trace, quantities, computing)
    dtype = None if run.vocabulary_dtype == "dtype" else getattr(torch, run.dtype)
    grows = run.cache_growth == "concatenated" and run.cache_dtype == "dtype"
    of_request: Values = {}
    if "request_bytes" in quantities:
        with caching(model, 1, run.length, dtype, grows) as caches:
            of_request["request_bytes"] = _bytes_of(caches, run)
        del caches
    with ExitStack() as stack:
        stack.enter_context(computing(model, run))
        if not isinstance(model, EncoderDecoderModel):
            take = last_copied if run.next_logits == "freed" else last
            stack.callback(model.get_submodule("head").register_forward_pre_hook(take).remove)
        with trace.watching("setup"):
            caches = stack.enter_context(caching(model, run.batch, run.length, dtype, grows))
            tokens = input_of(model, run.batch, run.length)
        values = {
            "cache_bytes": _bytes_of(caches, run),
            "peak_inference_bytes": {"setup": trace.peak},
        } | of_request
        if not quantities & OF_TOKENS or run.cache_dtype != "dtype":
            return values
        if isinstance(model, EncoderDecoderModel):
            n_before = target_tokens(run) - 1
            peaks = _of_source_and_target(model, trace, caches, tokens, n_before)
            of_decode = dict(trace.flops["decode"])
            return values | {"flops_decode": of_decode, "peak_inference_bytes": peaks}
        _clear(caches)
        with trace.watching("prefill"):
            held = _held(model(tokens), run)
        peaks = {"prefill": trace.peak}
        if grows:
            _clear(caches)
            if run.length > 1:
                with trace.watching("all but the last token"):
                    model(tokens[:, :-1])
        for cache in caches.values():
            if isinstance(cache, Cache):
                cache.length = run.length - 1
        with trace.watching("decode"):
            held = _held(model(tokens[:, -1:]), run)  # next to those of the token before
        del held
        peaks["decode"] = trace.peak
    return values | {"flops_decode": dict(trace.flops["decode"]), "peak_inference_bytes": peaks}


def _of_source_and_target(
    model: EncoderDecoderModel,
    trace: Trace,
    caches: dict[str, Any],
    tokens: torch.Tensor,
    n_before: int,
) -> dict[str, int]:
    """Encode a source and decode the first token of a target, then that after `n_before`.

    The loop that generates holds the encoder's states to its end. Returns peaks by phase.
    """
    with trace.watching("prefill"):
        memory = model.encode(tokens)
        model.decode(tokens[:, :1], memory)
    peaks = {"prefill": trace.peak}
    for path, cache in caches.items():
        if path.endswith(".attention"):
            cache.length = n_before
    with trace.watching("decode"):
        model.decode(tokens[:, :1], memory, n_before)
    return peaks | {"decode": trace.peak}


def _one_pass(
    model: nn.Module, run: RunConfig, trace: Trace, quantities: Set[str], computing: Callable
) -> Values:
    """Compute logits of all tokens, or without a head their states, without gradients."""
    with torch.no_grad(), computing(model, run):
        with trace.watching("setup"):
            tokens = input_of(model, run.batch, run.length)
            mask = {"attention_mask": torch.ones_like(tokens)} if run.padding else {}
        with trace.watching("forward"):
            output_of(model, tokens, **mask)
    values = {
        "peak_inference_bytes": {"forward": trace.peak},
        "flops_forward": dict(trace.flops["forward"]),
    }
    return {quantity: value for quantity, value in values.items() if quantity in quantities}


def _bytes_of(caches: dict[str, Any], run: RunConfig) -> dict[str, int]:
    """Return the bytes of caches by component, in the format of the run."""
    by_component: Counter[str] = Counter()
    for path, cache in caches.items():
        if isinstance(cache, Cache) and run.cache_dtype != "dtype":
            cache.store_in(run.cache_dtype)
        n_bytes = sum(tensor.untyped_storage().nbytes() for tensor in cache.tensors)
        by_component[component_of(join(path, cache.name, "weight"))] += n_bytes
    return dict(+by_component)


def _clear(caches: dict[str, Any]) -> None:
    for cache in caches.values():
        cache.clear()


def _held(logits: torch.Tensor, run: RunConfig) -> torch.Tensor | None:
    """Return what the loop that generates holds of the last token's logits, if anything."""
    is_held = run.next_logits == "float32"
    return logits[:, -1].to(torch.float32, copy=True) if is_held else None


def last(_, states: tuple):
    """Return the hidden states of the last token, which the head reads, as a view."""
    return tuple(x[:, -1:] for x in states)


def last_copied(_, states: tuple):
    """Return a copy of them."""
    return tuple(x[:, -1:].clone() for x in states)
