"""Quantised config.json files: counts in any case, bytes of the named format or none."""

import json

import polars as pl
import pytest
from helpers.config_files import LLAMA, XLNET

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.compare.comparison import compare
from modelbudget.measurement.pool import measure_all
from modelbudget.measurement.reference.traced import trace_class
from modelbudget.measurement.table import failures, measured_table
from modelbudget.predict.predict import predict
from modelbudget.sweeps.points_table import points_table

WIDE = LLAMA | {"hidden_size": 256, "intermediate_size": 512, "torch_dtype": "float16"}
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
    "config_groups": {"group_0": {
        "targets": ["Linear"], "input_activations": None,
        "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
                    "group_size": 128},
    }},
}  # fmt: skip
KNOWN = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
    "gptq-4bit": {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": False},
    "gptq-8bit": {"quant_method": "gptq", "bits": 8, "group_size": 32},
    "bnb-8bit": {"load_in_8bit": True, "quant_method": "bitsandbytes"},
    "bnb-4bit": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "bnb-4bit-double": {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    "fp8-block": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "int4-group": COMPRESSED,
}
REFUSED = {
    "three bits": {"quant_method": "gptq", "bits": 3, "group_size": 128},
    "another method": {"quant_method": "aqlm"},
    "a layer left out": KNOWN["awq"] | {"modules_to_not_convert": ["model.layers.0"]},
    "actorder": COMPRESSED | {"config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group",
                                           "group_size": 128, "actorder": "static"}}}},
}  # fmt: skip

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 256, "n_head": 4}
WRONG_BYTES = {
    "zero biases of AutoGPTQ": (WIDE, KNOWN["gptq-4bit"] | {"model_name_or_path": None}),
    "Conv1D stays in the dtype": (GPT2, KNOWN["fp8-block"]),
    "MXFP4 of a dense model": (
        WIDE, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    ),
    "a cache in int8": (WIDE, COMPRESSED | {"kv_cache_scheme": {"num_bits": 8, "type": "int"}}),
}  # fmt: skip


@pytest.mark.parametrize(("config", "given"), WRONG_BYTES.values(), ids=WRONG_BYTES)
def test_bytes_that_would_be_wrong_are_refused_in_one_line(tmp_path, config, given):
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": given}))
    model = mb.model(tmp_path)
    for quantity in ("parameter_bytes", "cache_bytes"):
        with pytest.raises(mb.InputError, match="quantised weights: weights = unknown") as raised:
            model.predict(quantity, {"implementation": "modelbudget"})
        assert len(raised.value.mistakes) == 1
    assert model.parameters().total > 0


def test_an_fp8_cache_has_half_the_bytes(tmp_path):
    """One byte a number; until 0.9 it was counted in the dtype."""
    fp8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    given = COMPRESSED | {"kv_cache_scheme": fp8}
    (tmp_path / "config.json").write_text(json.dumps(WIDE | {"quantization_config": given}))
    model = mb.model(tmp_path)
    of_file = model.predict("cache_bytes", {"length": 1024}).total
    assert (
        2 * of_file == model.predict("cache_bytes", {"length": 1024, "cache_dtype": "dtype"}).total
    )
    assert model.run().cache_dtype == "fp8"


@pytest.fixture
def compared(tmp_path, sweep):
    def run(config: dict, quantities=("parameters", "parameter_bytes", "activation_bytes")):
        (tmp_path / "config.json").write_text(json.dumps(config))
        expanded = sweep(
            "points: [{base: config.json, length: 8}]\nmeasure: {device: meta, quantities: "
            f"[{', '.join(quantities)}]}}"
        )
        points, measure = points_table(expanded), expanded.sweep.measure
        found = measure_all([(p.architecture, p.run) for p in expanded.points], measure, 1)
        table = compare(
            points,
            predict(points, measure.quantities),
            measured_table(found, measure.quantities),
            [],
            failures(found),
        )
        return expanded, table

    return run


def of(table: pl.DataFrame, quantity: str) -> pl.DataFrame:
    return table.filter(pl.col("quantity") == quantity)


@pytest.mark.parametrize("weights", KNOWN)
def test_a_known_format_has_its_bytes(compared, weights):
    expanded, table = compared(WIDE | {"quantization_config": KNOWN[weights]})
    assert expanded.points[0].run.weights == weights
    assert any(f"used as weights: {weights}" in line for line in expanded.notes)
    counts, stored = of(table, "parameters"), of(table, "parameter_bytes")
    assert counts["agrees"].all()
    assert stored["agrees"].all()
    assert stored["measured"].sum() < 2 * counts["measured"].sum()
    (reason,) = of(table, "activation_bytes")["failure"].unique()
    assert reason.startswith(f"quantised weights: weights = {weights}")


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("config", [WIDE, XLNET], ids=["formula", "class"])
def test_an_unknown_format_has_counts_and_no_bytes(compared, config, given):
    expanded, table = compared(config | {"quantization_config": given})
    assert expanded.points[0].run.weights == "unknown"
    assert any("bytes are refused" in line for line in expanded.notes)
    assert of(table, "parameters")["measured"].sum() > 0
    for quantity in ("parameter_bytes", "activation_bytes"):
        rows = of(table, quantity)
        assert rows["measured"].is_null().all()
        assert rows["predicted"].is_null().all()
        assert not rows["agrees"].any()
        assert rows["failure"].str.contains("quantised weights").all()


def test_a_refusal_is_no_failed_measurement(compared):
    from modelbudget.compare.comparison import verdict

    _, table = compared(WIDE | {"quantization_config": REFUSED["another method"]})
    assert verdict(table)["points_failed"] == 0


def test_a_class_without_quantised_weights_is_no_reference_for_them():
    run = RunConfig(weights="awq", length=8, dtype="float16")
    wanted = {"parameters", "parameter_bytes", "activation_bytes", "cache_bytes"}
    traced = trace_class("LlamaForCausalLM", LLAMA, run, wanted)
    assert traced.missing.keys() == {"parameter_bytes", "activation_bytes"}
    assert traced.values.keys() == {"parameters", "cache_bytes"}
