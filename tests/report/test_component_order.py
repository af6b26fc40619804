"""In tables, components stand in the order in which data flows through a model."""

import pytest

from modelbudget.report.component_order import sort_key
from modelbudget.sweeps.derive import named_architecture

MODELS = {
    "gpt-2-124m": [
        "embedding.position", "embedding.token", "layer.attention.query", "layer.mlp.down",
        "norm.final",
    ],
    "bloom-176b": ["embedding.token", "norm.embedding", "layer.mlp.up", "norm.final"],
    "t5-v1-1-small": [
        "embedding.token", "encoder.position", "encoder.layer.attention.query",
        "encoder.norm.final", "decoder.position", "decoder.layer.cross.key",
        "decoder.norm.final", "head",
    ],
    "bert-base": [
        "embedding.token", "embedding.norm", "layer.attention.query", "layer.norm.mlp", "pooler",
        "next_sentence",
    ],
    "transformer-xl-large": ["embedding.token", "layer.attention.query", "head.word"],
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_components_follow_the_data(name, catalogue):
    a = named_architecture(catalogue[name])
    found = [component for component, term in a.parameters(a).items() if term.total]
    in_flow = [one for one in sorted(found, key=sort_key) if one in MODELS[name]]
    assert in_flow == MODELS[name]


def test_what_only_training_has_stands_where_it_is_computed():
    of_training = ["loss", "head", "norm.final", "layer.dropout", "dropout", "embedding.token"]
    assert sorted(of_training, key=sort_key) == [
        "embedding.token", "dropout", "layer.dropout", "norm.final", "head", "loss",
    ]  # fmt: skip


def test_values_of_a_whole_stack_come_before_those_of_its_layers():
    """A decoder of T5 saves what no part of it does."""
    names = ["decoder.norm.final", "decoder.layer.cross.key", "decoder", "encoder.norm.final"]
    assert sorted(names, key=sort_key) == [names[3], names[2], names[1], names[0]]
