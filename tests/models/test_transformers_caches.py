"""Caches of transformers' classes that really hold keys and values, against `cache_layout`."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import modelbudget as mb

WINDOW, BATCH = 16, 2
COMMON = {
    "vocab_size": 53, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 128, "dtype": "bfloat16",
}  # fmt: skip
CONFIGS = {
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "gemma3_text": {
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
}


def stored(cache) -> int:
    """Return the bytes of the storages that a cache holds, each once."""
    tensors = [t for one in cache.layers for t in vars(one).values() if isinstance(t, torch.Tensor)]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


@pytest.fixture(scope="module", params=CONFIGS)
def classes(request, tmp_path_factory):
    """A model of a class, and the same from its config.json."""
    keys = COMMON | CONFIGS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "config.json").write_text(json.dumps(keys | {"model_type": request.param}))
    config = CONFIG_MAPPING[request.param](**keys)
    module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    return config, module, mb.model(folder, implementation="modelbudget")


@pytest.mark.parametrize(("prompt", "new"), [(10, 0), (33, 0), (33, 2), (14, 2), (16, 1)])
def test_a_dynamic_cache_holds_the_whole_prompt_until_the_next_token(classes, prompt, new):
    """Of a window it keeps one token less, as a view of what it was cut from.

    Bytes of numbers (one less) or of the window alone would miss the storage that is held.
    """
    config, module, model = classes
    cache = DynamicCache(config=config)
    with torch.no_grad():
        for n in (prompt, *new * (1,)):
            module(torch.zeros(BATCH, n, dtype=torch.long), past_key_values=cache, use_cache=True)
    layout = "dynamic" if new else "dynamic-prompt"
    run = {"batch": BATCH, "length": prompt + new, "cache_layout": layout}
    assert model.predict("cache_bytes", run).total == stored(cache)


def test_a_window_of_one_token_keeps_all_tokens():
    """Its layer keeps the last window - 1 tokens, as [-0:] (`DynamicSlidingWindowLayer`)."""
    model = mb.model("mistral-7b-v0.1", n_layer=1, n_kv_head=2, d_head=8, window=1)
    cache = DynamicCache(config=CONFIG_MAPPING["mistral"](num_hidden_layers=1, sliding_window=1))
    for n in (7, 1, 1):
        cache.update(*[torch.zeros(BATCH, 2, n, 8, dtype=torch.bfloat16)] * 2, 0)
    run = {"batch": BATCH, "length": 9, "cache_layout": "dynamic"}
    assert model.predict("cache_bytes", run).total == stored(cache)


@pytest.mark.parametrize("length", [64, 16])
def test_a_static_cache_has_all_its_places_from_the_first_token_on(classes, length):
    config, module, model = classes
    cache = StaticCache(config=config, max_cache_len=length)
    with torch.no_grad():
        module(torch.zeros(BATCH, 3, dtype=torch.long), past_key_values=cache, use_cache=True)
    run = {"batch": BATCH, "length": length, "cache_layout": "static"}
    assert model.predict("cache_bytes", run).total == stored(cache)


def test_formats_that_torch_has_are_measured(sweep):
    """Our modules allocate their caches in the format; the prediction is of its file."""
    for name in ("fp8", "int8", "float16"):
        expanded = sweep(
            f"base: qwen-3-0.6b\nfixed: {{n_layer: 2, length: 9, cache_dtype: {name}}}\n"
            "points: [{}]\nmeasure: {device: meta, quantities: [cache_bytes]}\n"
        )
        (point,) = expanded.points
        from modelbudget.measurement.build import build
        from modelbudget.measurement.trace.inference import infer
        from modelbudget.predict.formula import formula

        a, run = point.architecture, point.run
        measured = infer(build(a, "meta", run.dtype), run, {"cache_bytes"})["cache_bytes"]
        terms, holds = formula(type(a), "cache_bytes", a, run)
        assert holds
        assert {one: term.total for one, term in terms.items()} == measured
    with pytest.raises(Exception, match="cache_dtype = 'q8_0': cache_bytes of an engine"):
        sweep(
            "base: qwen-3-0.6b\nfixed: {cache_dtype: q8_0}\npoints: [{}]\n"
            "measure: {quantities: [cache_bytes]}\n"
        )
