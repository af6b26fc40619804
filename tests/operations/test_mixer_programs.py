"""Programs of mixers against traces of their torch modules: every allocation, in order."""

from unittest.mock import patch

import pytest
from helpers.allocations import (
    first_difference,
    programmed,
    programmed_inference,
    traced,
    traced_inference,
)
from helpers.tiers import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from modelbudget.architecture.run_config import RunConfig
from modelbudget.components.decoder import decoder_program as decoder
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.step.train import train
from modelbudget.modules.initialise import uninitialised
from modelbudget.operations.tape import Active
from modelbudget.quantities import pipelined_step
from modelbudget.quantities.inference_step import inference
from modelbudget.quantities.training_step import training_step

small = st.integers(1, 4)


@st.composite
def mamba2(draw) -> dict:
    n_group = draw(st.integers(1, 2))
    return {
        "n_mamba_group": n_group,
        "n_mamba_head": n_group * draw(st.integers(1, 3)),
        "d_mamba_head": draw(small),
        "d_mamba_state": draw(small),
        "d_mamba_convolution": draw(small),
        "mamba_norm": draw(st.booleans()),
    }


@st.composite
def delta_heads(draw) -> dict:
    n_key_head = draw(st.integers(1, 2))
    return {
        "n_linear_key_head": n_key_head,
        "n_linear_head": n_key_head * draw(st.integers(1, 2)),
        "d_linear_key": draw(small),
        "d_linear_value": draw(small),
        "d_linear_convolution": draw(small),
    }


@st.composite
def selected_tokens(draw) -> dict:
    return {
        **{name: draw(small) for name in ("q_lora_rank", "kv_lora_rank", "d_nope", "d_value")},
        "d_rope": 2 * draw(small),
        "d_index": 8 + draw(st.integers(0, 2)),
        "n_head": draw(small),
        "n_index_head": draw(st.integers(1, 2)),
        "n_selected": draw(st.integers(1, 3)),
        "position": draw(st.sampled_from(["none", "rotary"])),
        "norm": "rmsnorm",
    }


@st.composite
def selective_scan(draw) -> dict:
    scan_norm = draw(st.booleans())
    n_head = 1 if scan_norm else draw(st.integers(1, 3))
    return {
        "d_scan": n_head * draw(small),
        "scan_norm": scan_norm,
        "n_scan_head": n_head,
        **{name: draw(small) for name in ("d_scan_state", "d_scan_step", "d_scan_convolution")},
    }


@st.composite
def equal_heads(draw) -> dict:
    n_head = draw(small)
    return {"n_head": n_head, "n_kv_head": n_head, "d_head": 2 * draw(small)}


@st.composite
def attention_and_mamba2(draw) -> dict:
    position = draw(st.sampled_from(["none", "rotary"]))
    return draw(mamba2()) | {
        "n_head": 2,
        "n_kv_head": draw(st.integers(1, 2)),
        "position": position,
    }


@st.composite
def slstm(draw) -> dict:
    n_head, d_head = draw(small), draw(small)
    return {
        "n_slstm_head": n_head,
        "d_slstm_head": d_head,
        "d_slstm_convolution": draw(small),
        "d_model": n_head * d_head,
    }


@st.composite
def pairs_of_heads(draw) -> dict:
    n_kv_head = 2 * draw(st.integers(1, 2))
    return {
        "n_kv_head": n_kv_head,
        "n_head": n_kv_head * draw(st.integers(1, 2)),
        "d_head": 2 * draw(small),
        "position": draw(st.sampled_from(["none", "rotary"])),
    }


def each_small(*names: str) -> st.SearchStrategy[dict]:
    return st.fixed_dictionaries(dict.fromkeys(names, small))


SIZES = {
    "mamba2": mamba2(),
    "gated_deltanet": delta_heads(),
    "rg_lru": each_small("n_lru_block", "d_lru_block", "d_lru_convolution"),
    "mla": selected_tokens(),
    "kimi_delta": each_small("n_linear_head", "d_linear_key", "d_linear_convolution"),
    "selective_scan": selective_scan(),
    "short_convolution": each_small("d_short_convolution"),
    "lightning_attention": equal_heads(),
    "differential_attention": pairs_of_heads(),
    "mlstm": each_small("n_mlstm_head", "d_mlstm_key", "d_mlstm_value"),
    "slstm": slstm(),
    "channel_rnn": each_small("d_hidden"),
    "attention_and_mamba2": attention_and_mamba2(),
}
LENGTHS = {"gated_deltanet": [1, 2, 64, 65, 130]}
"""Lengths of the sequences, if not of 1 to 4 tokens: a chunk of Gated DeltaNet has 64."""
WITHOUT_AUTOCAST = {
    "rg_lru",
    "mla",
    "selective_scan",
    "mlstm",
    "slstm",
    "differential_attention",
}
WITHOUT_CACHE = {"mla"}
RECURRENT = [
    mixer for mixer in SIZES if mixer not in ("mla", "short_convolution", "differential_attention")
]


@st.composite
def decoders_and_runs(draw, mixer: str) -> tuple[Decoder, RunConfig]:
    fields = {
        "mixers": mixer,
        "mlps": draw(st.sampled_from(["none", "mlp"])),
        "n_vocab": draw(small),
        "d_model": draw(small),
        "d_ff": draw(small),
        "n_layer": draw(st.integers(1, 2)),
        "tied": draw(st.booleans()),
        "norm_placement": draw(st.sampled_from(["pre", "post", "output", "both"])),
        "position": "none",
        "n_head": 1,
        "n_kv_head": 1,
        "d_head": 2,
    }
    dtype = draw(st.sampled_from(["float32", "bfloat16"]))
    has_autocast = dtype == "float32" and mixer not in WITHOUT_AUTOCAST and draw(st.booleans())
    run = RunConfig(
        batch=draw(st.integers(1, 2)),
        length=draw(st.sampled_from(LENGTHS.get(mixer, [1, 2, 3, 4]))),
        dtype=dtype,
        autocast=draw(st.sampled_from(["bfloat16", "float16"])) if has_autocast else "none",
        norm_kernel="fused" if mixer == "mla" else draw(st.sampled_from(["fused", "written_out"])),
        recompute=draw(st.sampled_from(["none", "full"])),
        state_dtype=draw(st.sampled_from(["dtype", "float32"])),
        dropout=draw(st.booleans()),
    )
    return Decoder(**fields | draw(SIZES[mixer])), run


@st.composite
def long_runs(draw, mixer: str) -> tuple[Decoder, RunConfig]:
    """As above, of so many tokens that few of them are run; also with attention."""
    a, run = draw(decoders_and_runs(mixer))
    pattern = draw(st.sampled_from([mixer, f"{mixer} attention", f"sliding_attention {mixer}"]))
    window = draw(st.integers(1, 6)) if "sliding" in pattern else 0
    n_token = draw(st.integers(10, 20)) if mixer not in LENGTHS else draw(st.integers(512, 560))
    fields = {"mixers": pattern, "window": window, "n_layer": 2}
    return a.model_copy(update=fields), run.model_copy(update={"length": n_token})


few_examples = settings(max_examples=examples(6), deadline=None)


@pytest.mark.parametrize("mixer", SIZES)
@few_examples
@given(st.data())
def test_training_is_that_of_the_module(mixer, data):
    a, run = data.draw(decoders_and_runs(mixer))
    assert not first_difference(programmed(a, run), traced(a, run)), (a, run)
    step = training_step(decoder.program, a, run, n_steps=0)
    assert +step.parameters == {
        name: term.total for name, term in Decoder.parameters(a).items() if term.total
    }


@pytest.mark.parametrize("mixer", [mixer for mixer in SIZES if mixer not in WITHOUT_CACHE])
@few_examples
@given(st.data())
def test_inference_is_that_of_the_module(mixer, data):
    a, run = data.draw(decoders_and_runs(mixer))
    step, allocations = programmed_inference(a, run)
    measured, of_trace = traced_inference(a, run)
    assert not first_difference(allocations, of_trace), (a, run)
    assert step.peaks == measured["peak_inference_bytes"]
    assert step.caches == measured["cache_bytes"]
    assert +step.flops_decode == measured["flops_decode"]


@pytest.mark.parametrize("mixer", RECURRENT)
@settings(max_examples=3, deadline=None)
@given(st.data())
def test_few_steps_are_a_long_loop(mixer, data):
    """Every quantity is that of all tokens computed one after the other."""
    a, run = data.draw(long_runs(mixer))
    in_backward = data.draw(st.booleans())
    of_training = run.model_copy(update={"optimizer_in_backward": in_backward})
    of_inference = run.model_copy(update={"recompute": "none", "dropout": False})
    for compute, r in ((training_step, of_training), (inference, of_inference)):
        few = compute(decoder.program, a, r)
        with patch.object(Active, "few_steps", False):
            assert few == compute(decoder.program, a, r)
        assert not few.remainder


def test_a_loop_that_stops_early_frees_what_all_its_steps_made():
    """Only here: results of a loop that nothing saves, where a checkpointed call runs it again."""
    sizes = {"n_vocab": 5, "d_model": 3, "n_layer": 1, "n_head": 1, "n_kv_head": 1, "d_head": 2}
    sizes |= {"d_ff": 2, "n_ctx": 16, "d_hidden": 2}
    a = Decoder(**sizes, mixers="channel_rnn", mlps="none", tied=False)
    run = RunConfig(batch=2, length=12, recompute="full")
    few = training_step(decoder.program, a, run)
    with patch.object(Active, "few_steps", False):
        assert few == training_step(decoder.program, a, run)


@pytest.mark.parametrize("mixer", RECURRENT)
@settings(max_examples=2, deadline=None)
@given(st.data())
def test_few_steps_of_a_stage_are_a_long_loop(mixer, data):
    """Only here: passes of a stage between which something is live."""
    a, run = data.draw(long_runs(mixer))
    settings_of_stages = {
        "pipeline_parallel": 2, "pipeline_schedule": data.draw(st.sampled_from(["gpipe", "1f1b"])),
        "pipeline_rank": data.draw(st.sampled_from(["first", "last"])),
        "n_microbatch": 3, "batch": 3, "dropout": False, "loss_kernel": "torch",
    }  # fmt: skip
    a, run = a.model_copy(update={"n_mtp_layer": 0}), run.model_copy(update=settings_of_stages)
    few = pipelined_step.pipelined_step(a, run)
    for cached in (pipelined_step._passes, pipelined_step._steps, pipelined_step._run_passes):
        cached.cache_clear()
    with patch.object(Active, "few_steps", False):
        assert few == pipelined_step.pipelined_step(a, run)


@pytest.mark.parametrize("foreach", [True, False])
def test_the_optimizer_has_no_states_of_an_indexer_without_gradients(foreach):
    a = Decoder(
        **dict.fromkeys(("n_vocab", "d_model", "d_ff", "q_lora_rank", "kv_lora_rank"), 4),
        **dict.fromkeys(("d_nope", "d_value", "n_layer", "n_head", "n_kv_head"), 1),
        **dict.fromkeys(("d_head", "d_rope", "d_index", "n_index_head", "n_selected"), 2),
        mixers="mla",
        position="rotary",
    )
    run = RunConfig(batch=1, length=3, dtype="float32", attention_kernel="math", foreach=foreach)
    with uninitialised():
        model = build(a, "meta", run.dtype)
    measured = train(model, run, {"peak_training_bytes"})
    step = training_step(decoder.program, a, run)
    assert step.peaks == measured["peak_training_bytes"]
