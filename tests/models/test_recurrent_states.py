"""States of recurrent and state space models, RWKV and hybrids: one size for any number of
tokens.
"""

import itertools

import pytest
import torch
from helpers.inference import cache_is_known, measured_inference, predicted_inference
from helpers.other_families import SHAPES, TINY_MODELS, TOKENS, architectures
from helpers.strategies import decoders, hybrids
from helpers.tiers import examples
from helpers.transformers_models import mamba, mamba2, rwkv
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.families.hybrid import Hybrid
from modelbudget.families.recurrent_lm import RecurrentLM
from modelbudget.families.rwkv import RWKV
from modelbudget.families.state_space import SelectiveScan, StateSpaceDual
from modelbudget.measurement.build import build
from modelbudget.modules.cache import caching
from modelbudget.modules.initialise import initialise
from modelbudget.predict.formula import formula

CELLS = {"n_vocab": 11, "d_model": 6, "n_layer": 2, "d_hidden": 7, "d_last": 5, "tied": False}
OF_STATES = (
    "Mamba", "Falcon Mamba", "Mamba-2", "RWKV-4", "RWKV-5", "RWKV-6", "RWKV-7", "Zamba", "Zamba2",
)  # fmt: skip
MODELS = {name: TINY_MODELS[name] for name in OF_STATES}
MODELS |= {cell: RecurrentLM(**CELLS, d_projection=1, cell=cell) for cell in ("rnn", "gru", "lstm")}
MODELS |= {
    "projected": RecurrentLM(**CELLS, projected=True, d_projection=3),
    "hybrid": Hybrid(
        n_vocab=11, d_model=6, n_layer=2, n_head=2, n_kv_head=1, d_head=4, d_ff=9, d_hidden=3
    ),
}  # fmt: skip
WINDOW_OF_ALIBI = Decoder(
    n_vocab=11, d_model=8, n_layer=1, n_head=2, n_kv_head=2, d_head=4, d_ff=8, n_ctx=8,
    tied=False, position="alibi", mixers="sliding_attention", window=2,
)  # fmt: skip
WITH_ATTENTION = ("hybrid", "Zamba", "Zamba2")
STATE_SPACE = (SelectiveScan, StateSpaceDual)
families = st.sampled_from([RecurrentLM, SelectiveScan, StateSpaceDual, RWKV])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prompt", [1, 2, 5])
def test_a_token_at_a_time_says_what_all_at_once_say(name, prompt):
    torch.manual_seed(0)
    model = build(MODELS[name], "cpu", "float64").eval()
    initialise(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        at_once = model(TOKENS)
    with caching(model, *TOKENS.shape):
        rest = TOKENS[:, prompt:].split(1, dim=1)
        steps = torch.cat([model(TOKENS[:, :prompt]), *map(model, rest)], dim=1)
    torch.testing.assert_close(steps, at_once)
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), at_once)  # nothing is remembered any more


@given(families.flatmap(architectures) | hybrids(), st.integers(1, 3), st.integers(1, 5))
@settings(max_examples=examples(50))
def test_predicted_states_are_the_real_ones(a, batch, length):
    switches = [{}, {"state_dtype": "float32"}] if isinstance(a, STATE_SPACE) else [{}]
    for dtype, switch in itertools.product(("float32", "bfloat16"), switches):
        run = RunConfig(batch=batch, length=length, dtype=dtype, **switch)
        assert (
            predicted_inference(a, run, "cache_bytes") == measured_inference(a, run)["cache_bytes"]
        )


@given(st.sampled_from(SHAPES).flatmap(architectures) | hybrids() | decoders())
@example(WINDOW_OF_ALIBI)
@settings(max_examples=examples(100))
def test_a_cache_is_known_where_something_is_kept(a):
    _, holds = formula(type(a), "cache_bytes", a, RunConfig())
    assert holds == cache_is_known(a)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in WITH_ATTENTION])
def test_a_state_knows_no_length(name):
    a = MODELS[name]
    short, long = (measured_inference(a, RunConfig(length=length)) for length in (2, 9))
    assert short["cache_bytes"] == long["cache_bytes"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "make"), [("Mamba", mamba), ("Falcon Mamba", mamba), ("Mamba-2", mamba2)]
)
def test_transformers_keeps_as_much(name, make, dtype):
    """In float32, whatever the dtype of the weights."""
    a = MODELS[name]
    run = RunConfig(batch=2, length=8, dtype=dtype, state_dtype="float32")
    kept = make(a).eval().to(getattr(torch, dtype))(TOKENS, use_cache=True).cache_params
    assert isinstance(kept, DynamicCache)
    states = [
        [*layer.conv_states.values(), *layer.recurrent_states.values()] for layer in kept.layers
    ]
    n_bytes = sum(state.nbytes for layer in states for state in layer)
    assert n_bytes == sum(predicted_inference(a, run, "cache_bytes").values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformers_keeps_as_much_of_rwkv(dtype):
    a = MODELS["RWKV-4"]
    theirs = rwkv(a).eval().to(getattr(torch, dtype))
    n_bytes = sum(state.nbytes for state in theirs(TOKENS, use_cache=True).state)
    assert n_bytes == sum(
        predicted_inference(a, RunConfig(batch=2, dtype=dtype), "cache_bytes").values()
    )
