"""Random steps of classes of `transformers` against traces: what is declared as compared is exact.

Only here: products of sizes, precision, kernels, checkpointing, dropout, optimizers and
microbatches with each class, whose peaks lie in other places than those of one case at a time.
"""

import pytest
from helpers.tiers import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.architecture.terms import Term, of_model
from modelbudget.catalogue.implementations import implementations
from modelbudget.catalogue.named_models import Base
from modelbudget.common.errors import InputError
from modelbudget.families.decoder import Decoder
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.read_config import fields_of
from modelbudget.measurement.reference.class_trace import trace_class
from modelbudget.predict.formula import formula
from modelbudget.sweeps.compared import not_compared
from modelbudget.sweeps.derive import named_architecture

TRANSFORMERS = implementations()["transformers"]
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


@st.composite
def configs(draw, kind: str) -> dict:
    """Draw the sizes of a small model of a class."""
    n_head, n_layer = draw(st.sampled_from([1, 2, 4, 6])), draw(st.integers(1, 3))
    width, vocabulary = n_head * draw(st.sampled_from([8, 12, 16])), draw(st.integers(30, 300))
    if kind == "GPT2LMHeadModel":
        return {
            "vocab_size": vocabulary, "n_embd": width, "n_layer": n_layer, "n_head": n_head,
            "n_positions": 64,
        }  # fmt: skip
    config = {
        "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": n_layer,
        "intermediate_size": draw(st.sampled_from([8, 32, 160])), "num_attention_heads": n_head,
        "num_key_value_heads": draw(st.sampled_from([n for n in (1, 2, 6) if n_head % n == 0])),
        "head_dim": draw(st.sampled_from([8, 16, 32])), "pad_token_id": 0,
        "sliding_window": draw(st.sampled_from([5, 30])),
        "tie_word_embeddings": draw(st.booleans()),
    }  # fmt: skip
    known = translations()[kind].defaults
    return {
        key: value
        for key, value in (config | EXPERTS).items()
        if key in known or key == "pad_token_id"
    }


@st.composite
def runs(draw, kind: str, config: dict) -> RunConfig:
    """Draw a step; refused ones are drawn again."""
    choices = {
        "batch": [1, 2, 4], "length": [8, 16, 40], "dtype": ["float32", "bfloat16", "float16"],
        "attention_kernel": ["math", "efficient", "flash", "written_out"],
        "recompute": ["none", "full"], "dropout": [False, True], "foreach": [False, True],
        "optimizer": ["adamw", "momentum", "adafactor", "muon"], "n_microbatch": [1, 2],
        "master_weights": [False, False, True], "autocast": ["none", "none", "bfloat16", "float16"],
    }  # fmt: skip
    step = {name: draw(st.sampled_from(values)) for name, values in choices.items()}
    try:
        return RunConfig.model_validate(TRANSFORMERS.of_class(kind, config) | step)
    except (ValueError, InputError):
        assume(False)
        raise


@pytest.mark.parametrize("kind", TRANSFORMERS.classes)
@settings(max_examples=examples(6), deadline=None)
@given(data=st.data())
def test_what_is_compared_is_exact(kind, data):
    config = data.draw(configs(kind))
    run = data.draw(runs(kind, config))
    fields = fields_of(kind, {"model_type": translations()[kind].model_type} | config)
    a = named_architecture(Base(kind, kind, Decoder, fields, {}))
    assume(not run_mistake(a, run))
    compared = {
        quantity: formula(Decoder, quantity, a, run)
        for quantity in TRANSFORMERS.compared.quantities
        if not not_compared(quantity, kind, config, a, run)
    }
    traced = trace_class(kind, config, run, compared.keys())
    assert not traced.missing
    for quantity, (terms, is_known) in compared.items():
        of_class = {name: Term(value) for name, value in traced.values[quantity].items()}
        assert is_known
        assert of_model(quantity, terms) == of_model(quantity, of_class), quantity
