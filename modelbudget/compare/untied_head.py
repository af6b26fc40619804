"""Weight tying: untie embedding and head of Hugging Face's GPT-2, then tie them again."""

from collections.abc import Iterator
from typing import Any

import polars as pl
from torch import nn

from modelbudget.architecture.terms import total
from modelbudget.families.decoder import Decoder
from modelbudget.huggingface.write_config import config_of
from modelbudget.measurement.count import count
from modelbudget.measurement.reference.class_counts import build
from modelbudget.modules.initialise import uninitialised


def surgery(a: Decoder, devices: tuple[str, ...] = ("cpu", "meta")) -> pl.DataFrame:
    """Return parameters and storages of embedding and head after each step, on each device.

    Columns: device, step, operation, expected (the formula's count), parameters (measured),
    embedding_storage and head_storage (letters: equal letters are one storage), tied,
    data_ptr_says_tied (comparison of `data_ptr()`, which is true for any two tensors on meta),
    agrees.
    """
    rows = [
        {"device": device, "step": step, **_examine(model, a, operation)}
        for device in devices
        for step, (operation, model) in enumerate(_operate(a, device), start=1)
    ]
    return pl.DataFrame(rows)


def _operate(a: Decoder, device: str) -> Iterator[tuple[str, nn.Module]]:
    model: Any = build("GPT2LMHeadModel", config_of("GPT2LMHeadModel", a), device)
    yield "as built", model

    with uninitialised():
        fresh = nn.Linear(a.d_model, a.n_vocab, bias=False, device=device)
    model.lm_head = fresh
    yield "head replaced by a fresh one", model

    fresh.weight = model.transformer.wte.weight
    model.set_submodule("lm_head", nn.Sequential(fresh))
    yield "re-tied through a wrapping Sequential", model


def _examine(model: nn.Module, a: Decoder, operation: str) -> dict:
    words = model.get_parameter("transformer.wte.weight")
    head = next(model.get_submodule("lm_head").parameters())
    # Compare the addresses of storages: data_ptr() is the address of the values, which is 0 for
    # every tensor on meta.
    tied = words.untyped_storage()._cdata == head.untyped_storage()._cdata
    parameters = sum(c.parameters for c in count(model).values())
    intended = a.model_copy(update={"tied": operation != "head replaced by a fresh one"})
    expected = total(a.parameters(intended))
    return {
        "operation": operation,
        "expected": expected,
        "parameters": parameters,
        "embedding_storage": "A",
        "head_storage": "A" if tied else "B",
        "tied": tied,
        "data_ptr_says_tied": words.data_ptr() == head.data_ptr(),
        "agrees": parameters == expected and tied == intended.tied,
    }
