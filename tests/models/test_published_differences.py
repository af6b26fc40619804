"""The known differences between models and what was printed of them, by the numbers."""

import pytest
from helpers.project import ROOT

from modelbudget.architecture.terms import total
from modelbudget.catalogue.models import Catalogue
from modelbudget.families.encoder_decoder import EncoderDecoder
from modelbudget.sweep.expand import named_architecture

CATALOGUE = Catalogue(ROOT / "configs" / "models")


def parameters(name: str, **changes) -> int:
    architecture = named_architecture(CATALOGUE[name])
    changed = type(architecture)(**architecture.model_dump() | changes)
    return total(changed.parameters(changed))


TABLE_3 = [
    name
    for name, base in CATALOGUE.bases.items()
    if base.model and base.family is EncoderDecoder and base.fields["position"] == "sinusoidal"
]


@pytest.mark.parametrize("name", [name for name in TABLE_3 if name != "transformer-big"])
def test_the_first_transformer_is_as_printed_with_41000_words(name):
    printed = CATALOGUE[name].model.published_value
    assert abs(parameters(name) - printed) > 500_000
    assert abs(parameters(name, n_vocab=41_000) - printed) <= 500_000


def test_no_vocabulary_fits_the_big_transformer_and_the_others():
    assert parameters("transformer-big", n_vocab=35_800) == pytest.approx(213e6, abs=500_000)
    assert parameters("transformer-big", n_vocab=41_000) > 218e6


def test_t5_large_is_printed_with_two_embeddings():
    assert abs(parameters("t5-large") - 770e6) > 32e6
    assert abs(parameters("t5-large", tied=False) - 770e6) < 1e6


def test_transformer_xl_base_is_printed_untied_and_large_tied():
    assert abs(parameters("transformer-xl-base-1b") - 460e6) > 100e6
    assert abs(parameters("transformer-xl-base-1b", tied=False) - 460e6) < 10e6
    assert abs(parameters("transformer-xl-large-1b") - 800e6) < 50e6
    assert abs(parameters("transformer-xl-large-1b", tied=False) - 800e6) > 150e6


@pytest.mark.parametrize(
    ("name", "difference"), [("transformer-xl-large", 28_170_506), ("lstm-8192-2048", 101_878_399)]
)
def test_unexplained_differences_stay_named(name, difference):
    model = CATALOGUE[name].model
    assert parameters(name) - model.published_value == difference > model.published_tolerance
    assert model.reason.startswith("unexplained")


def test_torch_would_give_zaremba_a_second_bias():
    more = parameters("zaremba-large", hidden_bias=True) - parameters("zaremba-large")
    assert more == 2 * 4 * 1500


@pytest.mark.parametrize(
    ("name", "without_heads"), [("bert-base", 109_482_240), ("bert-large", 335_141_888)]
)
def test_bert_without_its_heads(name, without_heads):
    bare = parameters(name, transform=False, next_sentence=False, head_bias=False)
    assert bare == without_heads


@pytest.mark.parametrize("name", [name for name in CATALOGUE.bases if name.startswith("rwkv-4-")])
def test_rwkv_formula_of_the_paper(name):
    a = named_architecture(CATALOGUE[name])
    words, width, depth = a.n_vocab, a.d_model, a.n_layer
    assert parameters(name) == 2 * words * width + 13 * width**2 * depth + width * (11 * depth + 4)


@pytest.mark.parametrize(
    ("name", "words", "rows"), [("mamba-130m", 50_277, 50_280), ("mamba-2-130m", 50_277, 50_288)]
)
def test_padded_vocabularies(name, words, rows):
    assert named_architecture(CATALOGUE[name]).n_vocab == rows
    assert parameters(name) - parameters(name, n_vocab=words) == (rows - words) * 768
