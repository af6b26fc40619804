"""The decoder's formulas against its modules, over all switches at once."""

import pytest
import torch
from helpers.strategies import decoders
from helpers.tiers import examples
from hypothesis import given, settings

from modelbudget.architecture.terms import total
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.count import count
from modelbudget.modules.initialise import uninitialised


@given(decoders())
@settings(max_examples=examples(400))
def test_predicted_is_measured_component_by_component(a):
    with uninitialised(), torch.device("meta"):
        counts = count(a.build())
    measured = {name: c.parameters for name, c in counts.items() if c.parameters}
    assert {name: term.total for name, term in a.parameters(a).items() if term.total} == measured


def test_layers_of_each_kind_are_counted_apart():
    """Seven layers of a pattern of three mixers and two MLPs after one dense layer."""
    a = Decoder(
        n_vocab=11, d_model=6, n_layer=7, n_head=2, n_kv_head=1, d_head=4, d_ff=8,
        mixers="channel_rnn attention channel_rnn", d_hidden=2, position="none",
        mlps="mlp moe", n_dense_layer=1, n_expert=3, n_expert_per_token=2, d_expert=5,
    )  # fmt: skip
    instances = {name: term.instances for name, term in a.parameters(a).items()}
    assert instances["layer.attention.query"] == instances["layer.norm.attention"] == 2
    assert instances["layer.channel_rnn.input"] == instances["layer.norm.channel_rnn"] == 5
    assert instances["layer.moe.up"] == instances["layer.norm.moe"] == 3
    assert instances["layer.mlp.up"] == instances["layer.norm.mlp"] == 4


BASE = {
    "n_vocab": 11, "d_model": 6, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "d_head": 4, "d_ff": 8,
}  # fmt: skip
EXPERTS = {"mlps": "moe", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 3}
LATENT = {
    "mixers": "mla", "position": "rotary", "kv_lora_rank": 3, "d_nope": 2, "d_rope": 2,
    "d_value": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_kv_head": 3}, "n_kv_head = 3 does not divide n_head = 4"),
        ({"norm": "rmsnorm", "norm_bias": True}, "norm_bias = true needs norm: layernorm"),
        ({"qk_norm_bias": True}, "qk_norm_bias = true needs .* qk_norm: none"),
        ({"parallel": True, "norm_placement": "both"}, "parallel: true allows 'pre' alone"),
        ({"position": "rotary", "d_head": 3}, "d_head = 3 is odd"),
        ({"position": "rotary", "d_rotary": 3}, "d_rotary = 3 is odd"),
        (
            {"position": "rotary", "d_rotary": 3, "mixers": "differential_attention"},
            "d_rotary = 3 is odd",
        ),
        ({"position": "rotary", "d_rotary": 6}, "d_rotary = 6 needs .* at most d_head = 4"),
        ({"d_rotary": 2}, "d_rotary = 2 needs position: rotary"),
        ({"position": "alibi", "position_offset": 2}, "position_offset = 2 needs position: learn"),
        ({"n_expert": 4}, "n_expert = 4 needs moe in mlps"),
        ({"mlps": "moe"}, "n_expert = 0: moe in mlps needs at least 1"),
        (EXPERTS | {"n_expert_per_token": 5}, "n_expert_per_token = 5 is more than n_expert = 4"),
        (EXPERTS | {"shared_gate": True}, "shared_gate = true needs shared experts"),
        (EXPERTS | {"n_dense_layer": 3}, "n_dense_layer = 3 is more than n_layer = 2"),
        (LATENT | {"kv_lora_rank": 0}, "kv_lora_rank = 0: mla in mixers needs at least 1"),
        (LATENT | {"position": "learned"}, "mla in mixers allows none or rotary"),
        (LATENT | {"d_rope": 3}, "d_rope = 3 is odd"),
        (LATENT | {"sinks": True}, "sinks = true needs attention in mixers, which are 'mla'"),
        ({"mixers": "none", "position": "alibi"}, "position: alibi needs attention in mixers"),
        ({"mixers": "none attention", "mlps": "none mlp"}, "layer 1 is empty"),
        ({"mlps": "none", "parallel": True}, "parallel = true needs a mixer and an MLP"),
        ({"mixers": "local"}, "did you mean sliding_attention"),
        ({"mixers": "latent recurrent"}, "did you mean mla.*did you mean channel_rnn"),
        ({"mlps": "experts"}, "did you mean moe"),
        ({"mlps": "dense"}, "allowed: mlp, moe, none"),
        ({"mixers": ""}, "allowed: attention, attention_and_mamba2, channel_rnn, differential"),
        ({"mixers": "sliding_attention"}, "window = 0: sliding_attention in mixers needs at"),
        ({"window": 4}, "window = 4 needs sliding_attention in mixers"),
    ],
)  # fmt: skip
def test_illegal_records_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Decoder(**BASE | fields)


def test_active_parameters_leave_out_the_experts_passed_by():
    a = Decoder(**BASE | EXPERTS | {"d_shared": 5, "up_bias": True})
    one_expert = 2 * a.d_model * a.d_expert + a.d_expert
    passed_by = a.n_layer * (a.n_expert - a.n_expert_per_token) * one_expert
    assert total(a.active_parameters(a)) == total(a.parameters(a)) - passed_by
