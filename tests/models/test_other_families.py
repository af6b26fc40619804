"""Encoders, encoder–decoders, recurrent and state space models, RWKV, Transformer-XL:
predicted against measured, the readings, forward passes, and rejected values."""

import hypothesis.strategies as st
import pytest
import torch
from helpers.catalogue import CATALOGUE
from helpers.other_families import LENGTH, SHAPES, architectures, input_for
from helpers.readings import as_columns, as_integers, as_nodes, as_symbols
from helpers.tiers import examples
from hypothesis import given, settings

from modelbudget.common.errors import InputError
from modelbudget.measurement.build import build
from modelbudget.measurement.count import count
from modelbudget.modules.initialise import initialise, uninitialised
from modelbudget.sweeps.derive import named_architecture

NAMED = [name for name, base in CATALOGUE.bases.items() if base.model and base.family in SHAPES]
any_shape = st.sampled_from(SHAPES).flatmap(architectures)


def measured(architecture) -> dict[str, int]:
    with uninitialised():
        counts = count(build(architecture, "meta", "float32"))
    return {name: part.parameters for name, part in counts.items() if part.parameters}


@given(any_shape)
@settings(max_examples=examples(800))
def test_predicted_equals_measured(architecture):
    assert as_integers(architecture) == measured(architecture)


@given(any_shape)
@settings(max_examples=examples(100))
def test_columns_and_symbols_equal_integers(architecture):
    expected = as_integers(architecture)
    assert as_columns(architecture) == expected
    assert as_symbols(architecture) == expected


@pytest.mark.parametrize("family", SHAPES, ids=lambda family: family.name())
def test_vega_equals_integers(family):
    @given(architectures(family))
    @settings(max_examples=4)
    def check(architecture):
        assert as_nodes(architecture) == sum(as_integers(architecture).values())

    check()


def gradients(model, output) -> dict:
    output.square().mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@given(any_shape)
@settings(max_examples=examples(100))
def test_logits_are_finite_and_gradients_reach_every_parameter(architecture):
    torch.manual_seed(0)
    model = build(architecture, "cpu", "float32")
    initialise(model)
    logits = model(input_for(architecture))
    multiple = getattr(architecture, "vocab_multiple", 1)
    assert logits.shape == (2, LENGTH, -(-architecture.n_vocab // multiple) * multiple)
    assert logits.isfinite().all()
    without = {name for name, grad in gradients(model, logits).items() if grad is None}
    if getattr(architecture, "n_encoder_layer", 1) == 0:  # cross-attention is then skipped
        without = {name for name in without if "cross" not in name.split(".")}
    # These read one sentence as a whole: `relation` uses them, the words' logits do not.
    assert {name.partition(".")[0] for name in without} <= {"pooler", "next_sentence"}


SIZES = {
    "n_vocab": 23, "d_model": 8, "n_layer": 4, "n_head": 2, "d_head": 4, "d_value": 4, "d_ff": 12,
    "n_ctx": 9, "n_encoder_layer": 2, "n_decoder_layer": 2, "d_hidden": 8, "d_last": 8,
    "d_projection": 8, "n_character": 11, "d_character": 3, "n_filter": 16, "n_span": 4,
    "n_narrow": 2, "d_inner": 8, "d_state": 3, "d_step": 2, "cutoff_1": 5, "cutoff_2": 9,
    "cutoff_3": 16,
}  # fmt: skip
CLUSTERS = {"d_cluster_2": 4, "d_cluster_3": 2, "d_cluster_4": 1}


def small(name: str):
    """A named model with all its switches and small sizes."""
    named = named_architecture(CATALOGUE[name])
    fields = named.model_dump()
    sizes = SIZES | {"n_distinct": 1 if fields.get("n_distinct") == 1 else 4}
    sizes["d_emb"] = 4
    sizes |= CLUSTERS if fields.get("projected") else dict.fromkeys(CLUSTERS, 8)
    return type(named)(**{k: sizes.get(k, v) if v else v for k, v in fields.items()})


@pytest.mark.parametrize("name", NAMED)
def test_small_instances_use_every_parameter(name):
    architecture = small(name)
    torch.manual_seed(0)
    model = build(architecture, "cpu", "float32")
    initialise(model)
    # As initialised, biases are zero and some mixers look at one token only.
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    output = model(input_for(architecture)).flatten()
    if getattr(architecture, "pooler", False):
        output = torch.cat((output, model.relation(input_for(architecture)).flatten()))
    idle = {name for name, grad in gradients(model, output).items() if not grad.any()}
    # Softmax over keys is unchanged by what is added to the scores of all keys.
    assert {name for name in idle if not name.endswith("key.bias")} == set()


REFUSED = [
    ("encoder", {"n_layer": 4, "n_distinct": 3}, "n_distinct = 3 does not divide n_layer = 4"),
    ("encoder", {"d_emb": 4, "transform": False}, "transform = false"),
    ("encoder", {"first_norm": False}, "first_norm = false needs norm_placement: pre"),
    ("encoder", {"next_sentence": True}, "next_sentence = true needs pooler: true"),
    ("encoder", {"position": "rotary", "d_head": 3}, "d_head = 3 is odd"),
    ("encoder", {"position": "rotary", "position_offset": 2}, "position_offset = 2 needs"),
    ("encoder-decoder", {"position": "buckets", "n_bucket": 6}, "n_bucket = 6"),
    ("encoder-decoder", {"position": "buckets", "max_distance": 16}, "max_distance = 16"),
    ("recurrent-lm", {"n_layer": 1, "d_last": 3}, "d_last = 3 differs from d_hidden = 8"),
    ("recurrent-lm", {"cell": "gru", "projected": True}, "projected = true with cell: gru"),
    ("recurrent-lm", {"d_last": 3}, "tied = true needs a last layer of width d_model = 8"),
    ("character-lm", {"n_filter": 15}, "n_filter = 15 is not n_narrow"),
    ("character-lm", {"n_letter": 3}, "n_letter = 3 is less than n_span = 4"),
    ("state-space-dual", {"d_head": 3, "n_head": 3}, "n_head · d_head = 9 is not d_inner = 16"),
    ("state-space-dual", {"d_head": 4, "n_head": 4, "n_group": 3}, "n_group = 3 does not divide"),
    ("transformer-xl", {"adaptive": True, "cutoff_1": 9}, "do not rise from 0 to n_vocab = 23"),
    ("transformer-xl", {"cutoff_1": 9}, "need adaptive: true"),
    ("transformer-xl", {"projected": True}, "projected = true needs adaptive: true"),
    ("transformer-xl", {"d_cluster_2": 4}, "differ from d_model = 8"),
    ("transformer-xl", {"tied_projections": True}, "tied_projections = true needs projected"),
]  # fmt: skip
ENOUGH = {
    "n_vocab": 23, "d_model": 8, "n_layer": 2, "n_head": 2, "n_encoder_layer": 1,
    "n_decoder_layer": 1, "d_hidden": 8, "n_filter": 16, "n_span": 4, "n_narrow": 2,
}  # fmt: skip


@pytest.mark.parametrize(("family", "fields", "message"), REFUSED)
def test_what_does_not_fit_together_is_refused(sweep, family, fields, message):
    known = CATALOGUE[family].family.model_fields
    point = {k: v for k, v in ENOUGH.items() if k in known} | fields
    text = ", ".join(f"{k}: {str(v).lower()}" for k, v in point.items())
    with pytest.raises(InputError) as error:
        sweep(f"base: {family}\npoints: [{{{text}}}]")
    (line,) = error.value.mistakes
    assert message in line
