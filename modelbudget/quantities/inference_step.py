"""Inference with a program: caches, FLOPs of a token, peaks of prefill and decode or of a pass."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import has_part_of_experts, is_sharded, target_tokens
from modelbudget.operations.autocast import Autocast
from modelbudget.operations.elementwise import without_gradient
from modelbudget.operations.part import NoProgramError
from modelbudget.operations.tape import Active, Tape, empty, running_on
from modelbudget.quantities.depth import OfPhases
from modelbudget.quantities.tape_of_run import finish, make_model, parameters_of, tape_of
from modelbudget.quantities.training_step import check_devices


@dataclass
class Inference(OfPhases):
    """Bytes of parameters and caches and FLOPs of one token by component, peaks by phase."""

    parameter_bytes: Counter[str] = field(default_factory=Counter)
    caches: Counter[str] = field(default_factory=Counter)
    n_caches: Counter[str] = field(default_factory=Counter)
    """By component: how many equal caches its bytes are of; 1 where they differ."""
    flops_forward: Counter[str] = field(default_factory=Counter)
    """Of the one pass of a model that reads all tokens at once."""
    flops_decode: Counter[str] = field(default_factory=Counter)


def inference(program, a, run: RunConfig, lists_allocations: bool = False) -> Inference:
    """Prefill caches with a prompt of `length` tokens, then decode its last token again.

    A model that reads all tokens at once has one forward pass instead; with a decoder behind an
    encoder, prefill encodes a source and decodes the first token of a target. Raises
    NoProgramError for a part or a setting that has no program.
    """
    run = run.model_copy(update={"recompute": "none", "dropout": False, "adapter_dropout": False})
    check_devices(a, run)
    if is_sharded(run) or run.sequence_parallel or has_part_of_experts(run):
        of = f"zero: {run.zero}, sequence_parallel: {run.sequence_parallel}"
        raise NoProgramError(f"{of}, expert_parallel: {run.expert_parallel} in inference")
    if run.context_parallel > 1:
        raise NoProgramError(f"context_parallel: {run.context_parallel} in inference")

    def last(states):
        """Return the states of the last token: a view, or a copy."""
        of_last = states.narrow(1, 1, is_first=False)
        return of_last if run.next_logits == "float32" else of_last.clone()

    result = Inference()
    with running_on(tape_of(run, lists_allocations)) as tape, tape.without_graph():
        tape.cache_length = run.batch, run.length
        model = make_model(tape, program, a, run)
        if tape.adapter is not None:
            tape.adapter.check_forward()
        _, result.parameter_bytes = parameters_of(tape)
        tokens = empty((run.batch, run.length, *a.shape_of_token), "int64")
        _add_caches(result, tape)
        for _, cache in tape.caches:
            cache.clear()
        before = tape.live
        tape.autocast = None if run.autocast == "none" else Autocast(run.autocast)
        if a.reads_all_at_once:
            tape.restart("forward")
            model(tokens)
            finish(result, tape, "forward")
            result.flops_forward = Counter(tape.flops["forward"])
            return result
        if hasattr(model, "decode"):
            _of_source_and_target(result, tape, model, tokens, run)
            return result
        for phase, n_token in (("prefill", run.length), ("decode", 1)):
            tape.flops["forward"].clear()
            tape.restart("forward")
            logits = model.next_token(tokens.narrow(1, n_token), last)
            if run.next_logits == "float32":
                logits_of_loop = without_gradient(logits, "float32")
            del logits
            finish(result, tape, phase)
            for _, cache in tape.caches:
                cache.forget_last()
        result.flops_decode = Counter(tape.flops["forward"])
        tape.autocast = None
        logits_of_loop = None
        for _, cache in tape.caches:
            cache.clear()
        if Active.zero is int:
            result.remainder = tape.live - before
    return result


def _of_source_and_target(result: Inference, tape: Tape, model, tokens, run: RunConfig) -> None:
    """Encode a source and decode the first token of a target; then its last.

    The loop that generates holds the encoder's states to its end.
    """
    n_before = 0
    tape.restart("forward")
    memory = model.encode(tokens)
    for phase in ("prefill", "decode"):
        if phase == "decode":
            n_before = target_tokens(run) - 1
            for name, cache in tape.caches:
                if not name.endswith(".cross"):
                    cache.length = n_before
            tape.flops["forward"].clear()
            tape.restart("forward")
        model.decode(tokens.narrow(1, 1), memory, n_before)
        finish(result, tape, phase)
    result.flops_decode = Counter(tape.flops["forward"])


def declared_caches(program, a, run: RunConfig) -> Inference:
    """Return the caches of a model that is made and not run. Raises NoProgramError."""
    check_devices(a, run)
    result = Inference()
    with running_on(tape_of(run)) as tape, tape.without_graph():
        tape.cache_length = run.batch, run.length
        make_model(tape, program, a, run)
        if tape.adapter is not None:
            tape.adapter.check_forward()
        _add_caches(result, tape)
    return result


def _add_caches(result: Inference, tape: Tape) -> None:
    first: dict[str, Any] = {}
    uneven = set()
    for name, cache in tape.caches:
        n_bytes = sum(tensor.storage.n_bytes for tensor in cache.tensors)
        if first.setdefault(name, n_bytes) != n_bytes:
            uneven.add(name)
        times = cache.tensors[0].storage.times
        result.caches[name] += n_bytes * times
        result.n_caches[name] += times
    result.n_caches.update({name: 1 - result.n_caches[name] for name in uneven})
