"""Training and inference of `transformers` classes as a user writes them, on a real CPU.

Their bytes are counted by `LiveBytes`. Nothing of the package is replaced; of torch, attention is
its composition of simpler operations.
"""

import inspect
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from helpers.live_bytes import LiveBytes
from modelbudget.huggingface.construct import config_object, set_dropout
from modelbudget.huggingface.offline import transformers
from modelbudget.measurement.trace.backend import backend


def built(kind: str, config: dict[str, Any], eager: bool = False) -> torch.nn.Module:
    """Build a class in float32, without dropout."""
    made = config_object(kind, config)
    set_dropout(kind, made, False)
    if eager:
        made._attn_implementation = "eager"
    return getattr(transformers, kind)(made)


def trained(model: torch.nn.Module, batch: int, length: int, foreach: bool) -> dict[str, int]:
    """Train two steps; return the bytes that autograd saves, and the peak of each phase."""
    model.train()
    live = LiveBytes([*model.parameters(), *model.buffers()])
    with live.phase("setup"):
        tokens = torch.zeros(batch, length, dtype=torch.long)
        labels = torch.zeros_like(tokens)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)

    def loss():
        takes = inspect.signature(model.forward).parameters
        arguments: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
        if any(one.kind is one.VAR_KEYWORD for one in takes.values()):
            arguments["num_items_in_batch"] = labels.numel()  # as Trainer does
        return model(tokens, labels=labels, **arguments).loss

    with backend("cpu", "math"):
        saved = _saved(model, loss)
        for step in ("first", "second"):
            with live.phase(f"{step}.forward_backward"):
                loss().backward()
            with live.phase(f"{step}.optimizer"):
                optimizer.step()
                optimizer.zero_grad()
    del live.peaks["setup"]
    return {"saved": saved, **live.peaks}


def _saved(model: torch.nn.Module, forward) -> int:
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    storages = {}

    def pack(tensor):
        if (storage := tensor.untyped_storage())._cdata not in own:
            storages[storage._cdata] = storage  # keeps it alive
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in storages.values())


def inferred(model: torch.nn.Module, batch: int, length: int) -> dict[str, int]:
    """Prefill a prompt, then decode its last token; return the cache's bytes, and both peaks.

    As in the loop of transformers, the logits of the token before stay while one is decoded.
    """
    model.eval()
    takes = inspect.signature(model.forward).parameters
    name = "cache_params" if "cache_params" in takes else "past_key_values"
    live = LiveBytes([*model.parameters(), *model.buffers()])

    def step(tokens, cache=None):
        given = {} if cache is None else {name: cache}
        output = model(tokens, use_cache=True, logits_to_keep=1, **given)
        return output.logits[:, -1].to(torch.float32, copy=True), output[name]

    with torch.no_grad(), backend("cpu", "math"):
        with live.phase("setup"):
            tokens = torch.zeros(batch, length, dtype=torch.long)
        before = live.now
        with live.phase("prefill"):
            scores, cache = step(tokens)
        held = live.now - before - scores.untyped_storage().nbytes()
        del cache
        with live.phase("prompt"):
            cache = step(tokens[:, :-1])[1]
        with live.phase("decode"):
            step(tokens[:, -1:], cache)
    return {"cache": held} | {phase: live.peaks[phase] for phase in ("prefill", "decode")}
