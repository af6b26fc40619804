"""Ledger of GPT-2: expected and true parameters of every module of Hugging Face's model."""

import re
from types import SimpleNamespace
from typing import Any

import polars as pl
from torch import nn

from modelbudget.architecture.evaluators import symbols
from modelbudget.architecture.terms import Term
from modelbudget.components import embedding, norm
from modelbudget.components.feed_forward import mlp
from modelbudget.components.mixers import attention
from modelbudget.families.decoder import Decoder
from modelbudget.huggingface.write_config import config_of
from modelbudget.measurement.count import count
from modelbudget.measurement.reference.class_counts import build

GPT2, LAYER = "GPT2LMHeadModel", "transformer.h.*"
TOP_LEVEL = {"transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head", LAYER}


def expected(a) -> dict[str, Any]:
    """Return the expected parameters of each module by its path in Hugging Face's model.

    Dropout and activations are listed with zero. Query, key and value are one matrix there.
    """
    projections, hidden = attention.parameters(a), mlp.parameters(a)
    fused = projections["query"] + projections["key"] + projections["value"]
    one_norm = norm.parameters(a)
    in_attention = {
        "c_attn": fused,
        "c_proj": projections["output"],
        "attn_dropout": 0,
        "resid_dropout": 0,
    }
    in_mlp = {"c_fc": hidden["up"], "c_proj": hidden["down"], "act": 0, "dropout": 0}
    in_layer = {
        "ln_1": one_norm,
        "attn": sum(in_attention.values()),
        **{f"attn.{name}": value for name, value in in_attention.items()},
        "ln_2": one_norm,
        "mlp": sum(in_mlp.values()),
        **{f"mlp.{name}": value for name, value in in_mlp.items()},
    }
    return {
        "transformer.wte": embedding.token(a),
        "transformer.wpe": embedding.position(a),
        "transformer.drop": 0,
        LAYER: 2 * one_norm + in_layer["attn"] + in_layer["mlp"],
        **{f"{LAYER}.{name}": value for name, value in in_layer.items()},
        "transformer.ln_f": one_norm,
        "lm_head": embedding.head(a),
    }


def ledger(label: str, a: Decoder, device: str) -> pl.DataFrame:
    """Return a row for each kind of module, in the order of the model, and one for the total.

    Columns: model, module (`*` stands for the layer's number), kind (class), instances,
    each_expected, each_true, expected, true, shared_with, formula (as text and as MathML), agrees,
    device.
    """
    model: Any = build(GPT2, config_of(GPT2, a), device)
    formulas = expected(_symbols(a))
    rows = [
        _row(path, modules[0], expected(a)[path], [_owned(module, model) for module in modules])
        | {
            "shared_with": _shared_with(modules[0], model),
            "formula": str(formulas[path]),
            "mathml": symbols.to_mathml(Term(formulas[path])),
        }
        for path, modules in _by_path(model).items()
    ]
    whole = sum(row["expected"] for row in rows if row["module"] in TOP_LEVEL)
    total = sum(c.parameters for c in count(model).values())
    of_total = {"shared_with": None, "formula": "", "mathml": ""}
    rows.append(_row("total", model, whole, [total]) | of_total)
    return pl.DataFrame(rows).select(
        pl.lit(label).alias("model"),
        pl.all(),
        (pl.col("expected") == pl.col("true")).alias("agrees"),
        pl.lit(device).alias("device"),
    )


def _row(path: str, module: nn.Module, each: int, counts: list[int]) -> dict[str, Any]:
    return {
        "module": path,
        "kind": type(module).__name__,
        "instances": len(counts),
        "each_expected": each,
        "each_true": counts[0],
        "expected": each * len(counts),
        "true": sum(counts),
    }


def _by_path(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Group modules with the same path in every layer; ModuleLists are left out."""
    modules: dict[str, list[nn.Module]] = {}
    for path, module in model.named_modules():
        if path and not isinstance(module, nn.ModuleList) and path != "transformer":
            modules.setdefault(re.sub(r"\.\d+", ".*", path), []).append(module)
    return modules


def _owned(module: nn.Module, model: Any) -> int:
    """Count the parameters of a module, except those that the token embedding owns."""
    words = model.transformer.wte
    return sum(
        parameter.numel()
        for parameter in module.parameters()
        if module is words or parameter is not words.weight
    )


def _shared_with(module: nn.Module, model: Any) -> str | None:
    words = model.transformer.wte
    shares = module is not words and any(p is words.weight for p in module.parameters())
    return "transformer.wte" if shares else None


def _symbols(a: Decoder) -> SimpleNamespace:
    """Return sizes as symbols, and the switches of this model as numbers.

    GPT-2 has one key head for each query head, and n_head · d_head is d_model.
    """
    named = symbols.of_values(type(a), a.model_dump())
    named.n_kv_head = named.n_head
    named.d_head = named.d_model / named.n_head
    return named
