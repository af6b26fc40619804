"""JetMoE: experts of queries and outputs, and of MLPs, against our module and the class."""

import pytest
import torch
import transformers
from helpers.allocations import (
    first_difference,
    programmed,
    programmed_inference,
    traced,
    traced_inference,
)
from helpers.inference import logits_at_once_and_in_turn
from helpers.tiers import examples
from helpers.training import predicted
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.jetmoe import modeling_jetmoe as theirs

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.catalogue.named_models import Base
from modelbudget.families.decoder import Decoder
from modelbudget.huggingface.read_config import fields_of
from modelbudget.measurement.build import build
from modelbudget.measurement.count import count
from modelbudget.modules.mixers import mixture_of_attention_heads
from modelbudget.sweeps.derive import named_architecture

CLASS = "JetMoeForCausalLM"
KEYS = {
    "vocab_size": 19, "hidden_size": 16, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "kv_channels": 6, "intermediate_size": 5, "num_local_experts": 4, "num_experts_per_tok": 2,
    "max_position_embeddings": 32,
}  # fmt: skip


def decoder(**keys) -> Decoder:
    fields = fields_of(CLASS, {"model_type": "jetmoe"} | KEYS | keys)
    return named_architecture(Base(CLASS, CLASS, Decoder, fields, {}))


def of_class(**keys):
    config = transformers.JetMoeConfig(**KEYS | keys, attn_implementation="eager")
    return theirs.JetMoeForCausalLM(config)


@st.composite
def models(draw) -> tuple[Decoder, RunConfig]:
    small = st.integers(1, 4)
    n_chosen = draw(st.integers(1, 3))
    keys = {name: draw(small) for name in ("vocab_size", "hidden_size", "intermediate_size")}
    keys |= {"num_key_value_heads": draw(small)}
    keys |= {"num_experts_per_tok": n_chosen, "num_local_experts": n_chosen + draw(small) - 1}
    dtype, kernel = draw(
        st.sampled_from([("float32", "math"), ("float32", "efficient"), ("bfloat16", "flash")])
    )
    keys["kv_channels"] = 8 if kernel == "flash" else 2 * draw(small)
    run = RunConfig(
        batch=draw(st.integers(1, 2)),
        length=draw(small),
        dtype=dtype,
        attention_kernel=kernel,
        recompute=draw(st.sampled_from(["none", "full"])),
        foreach=draw(st.booleans()),
    )
    changed = {"tied": draw(st.booleans()), "position": draw(st.sampled_from(["none", "rotary"]))}
    return decoder(**keys, num_hidden_layers=1).model_copy(update=changed), run


@given(models())
@settings(max_examples=examples(15), deadline=None)
def test_each_allocation_is_that_of_the_module(model):
    """Of both new parts: what a program allocates in another order only this sees."""
    a, run = model
    assert not first_difference(programmed(a, run), traced(a, run)), (a, run)
    step, allocations = programmed_inference(a, run)
    measured, of_trace = traced_inference(a, run)
    assert not first_difference(allocations, of_trace), (a, run)
    assert step.caches == measured["cache_bytes"]
    assert +step.flops_decode == measured["flops_decode"]


def test_the_class_has_as_many_parameters():
    a = decoder()
    parts = {name: term.each for name, term in a.parameters(a).items()}
    model = of_class()
    layer = model.model.layers[0]
    ours = "layer.mixture_of_attention_heads"
    pairs = {
        layer.self_attention.experts.input_linear: parts[f"{ours}.query"],
        layer.self_attention.experts.output_linear: parts[f"{ours}.output"],
        layer.self_attention.experts.router: parts[f"{ours}.router"],
        layer.self_attention.kv_proj: parts[f"{ours}.key_value"],
        layer.mlp: sum(n for name, n in parts.items() if name.startswith("layer.moe")),
    }
    assert {m: sum(p.numel() for p in m.parameters()) for m in pairs} == pairs
    counted = sum(p.numel() for p in model.parameters())
    assert total(a.parameters(a)) == counted
    assert sum(c.parameters for c in count(build(a, "meta", "float32")).values()) == counted


def test_the_class_computes_as_many_products():
    """Counted by torch as the class runs on real tokens, whatever experts they choose."""
    a, run = decoder(), RunConfig(batch=2, length=7, dtype="float32", attention_kernel="math")
    model = of_class()
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(19, (2, 7)), use_cache=False)
    values = predicted(a, run, ("flops_forward",))["flops_forward"]
    assert sum(values.values()) == counter.get_total_flops()


def test_attention_computes_what_its_class_computes():
    torch.manual_seed(0)
    block = of_class().model.layers[0].self_attention
    ours = mixture_of_attention_heads.make(decoder().model_copy(update={"position": "none"}))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.5)
        ours.bias.copy_(block.experts.bias)
        ours.router.weight.copy_(block.experts.router.layer.weight)
        ours.query.weight.copy_(block.experts.input_linear.weight)
        ours.output.weight.copy_(block.experts.output_linear.weight)
        ours.key_value.weight.copy_(block.kv_proj.weight)
        x = torch.randn(2, 7, 16)
        unrotated = torch.ones(1, 7, 6), torch.zeros(1, 7, 6)
        mask = torch.full((7, 7), -torch.inf).triu(1)[None, None]
        torch.testing.assert_close(ours(x), block(x, mask, unrotated)[0])


def test_a_token_at_a_time_gives_what_all_at_once_give():
    at_once, in_turn = logits_at_once_and_in_turn(decoder())
    torch.testing.assert_close(in_turn, at_once)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_head": 3, "n_kv_head": 1}, "n_head = 3: mixture_of_attention_heads in mixers needs"),
        ({"position": "alibi"}, "position"),
        ({"n_query_expert": 1}, "n_query_expert_per_token = 2 is more than n_query_expert = 1"),
        ({"mixers": "attention"}, "n_query_expert = 4 needs mixture_of_attention_heads in mixers"),
    ],
)
def test_a_model_that_cannot_be(changed, message):
    with pytest.raises(ValueError, match=message):
        Decoder(**dict(decoder()) | changed)


@pytest.mark.parametrize("field", [{"activation": "xielu"}, {"inner_norm": True}])
def test_what_these_experts_do_not_have_is_refused(field):
    """Only this sees constraints that name other experts alone: the module has no such parts."""
    sizes = {"n_vocab": 9, "d_model": 8, "n_layer": 1, "n_head": 2, "d_head": 4, "d_ff": 8}
    experts = {
        "mlps": "moe",
        "moe_bias": True,
        "n_expert": 2,
        "n_expert_per_token": 1,
        "d_expert": 4,
    }
    with pytest.raises(ValueError, match=next(iter(field))):
        Decoder(n_kv_head=2, **sizes, **experts, **field)
