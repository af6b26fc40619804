"""Every operation of a backward timeline is in the trace, and a wrong one is named."""

import pytest
from helpers.why import first_difference, why

from modelbudget.architecture.run_config import RunConfig
from modelbudget.components import scaled_dot_product
from modelbudget.families.decoder import Decoder
from modelbudget.memory.timeline import Allocation, live_bytes

SIZES = {
    "n_vocab": 19, "d_model": 16, "n_layer": 2, "n_head": 2, "n_kv_head": 1, "d_head": 8,
    "d_ff": 24, "n_ctx": 24,
}  # fmt: skip
BIASES = dict.fromkeys(
    ("query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "down_bias", "head_bias"),
    True,
)
KINDS = {
    "GPT-2": {},
    "biases, untied": BIASES | {"norm_bias": True, "tied": False},
    "MLA and attention": {
        "mixers": "mla attention", "position": "rotary", "kv_lora_rank": 8, "q_lora_rank": 6,
        "d_nope": 8, "d_rope": 4, "d_value": 12, "norm": "rmsnorm",
    },
    "experts": {
        "mlps": "mlp moe", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 24, "d_shared": 6,
        "shared_gate": True,
    },
    "parallel": {"parallel": True},
    "gated": {"attention_gate": True, "norm_placement": "both"},
}  # fmt: skip
BUFFER = {"dtype": "bfloat16", "master_weights": True, "gradient_casts": "accumulated"}
RUNS = {
    "GPU": {},
    "CPU": {"backend": "cpu", "dropout": True},
    "full checkpointing": {"recompute": "full"},
    "selective checkpointing": {"recompute": "selective", "dtype": "bfloat16"},
    "gradients added to a buffer": BUFFER | {"dropout": True},
    "a buffer, full checkpointing": BUFFER | {"recompute": "full", "projections": "packed"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", RUNS)
def test_every_operation_is_in_the_trace(kind, run):
    a, run = Decoder(**SIZES | KINDS[kind]), RunConfig(batch=2, length=10, **RUNS[run])
    assert why(a, run) is None


def test_a_wrong_allocation_is_named(monkeypatch):
    right = scaled_dot_product._unfused_backward

    def wrong(*given):
        return [
            one._replace(bytes=one.bytes + 4) if one.name == "softmax gradient" else one
            for one in right(*given)
        ]

    monkeypatch.setattr(scaled_dot_product, "_unfused_backward", wrong)
    difference = why(Decoder(**SIZES), RunConfig(batch=2, length=10))
    assert difference.startswith("layer 1: attention: softmax gradient: ")


def test_the_first_difference_by_hand():
    timeline = [Allocation("a", 3), Allocation("b", 2, 4), Allocation("c", 5, 1)]
    assert live_bytes(10, timeline) == [15, 16, 15]
    assert first_difference(10, timeline, [13, 15, 11, 16]) is None
    assert first_difference(10, timeline, [13, 15, 17]) == (
        "c: 16 live bytes by the formula; nearest measured: 15"
    )
