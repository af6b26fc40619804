"""The known differences between models and what was printed of them, by the numbers."""

import pytest
from helpers.catalogue import CATALOGUE

from modelbudget.architecture.terms import total
from modelbudget.families.encoder_decoder import EncoderDecoder
from modelbudget.sweeps.derive import named_architecture


def parameters(name: str, **changes) -> int:
    architecture = named_architecture(CATALOGUE[name])
    changed = type(architecture)(**architecture.model_dump() | changes)
    return total(changed.parameters(changed))


TABLE_3 = [  # Vaswani et al. 2017: the models of Table 3
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
    """Vaswani et al. 2017, Table 3, prints 213M for the big model."""
    assert parameters("transformer-big", n_vocab=35_800) == pytest.approx(213e6, abs=500_000)
    assert parameters("transformer-big", n_vocab=41_000) > 218e6


def test_t5_large_is_printed_with_two_embeddings():
    """Raffel et al. 2020, §3.7, prints 770M."""
    assert abs(parameters("t5-large") - 770e6) > 32e6
    assert abs(parameters("t5-large", tied=False) - 770e6) < 1e6


def test_transformer_xl_base_is_printed_untied_and_large_tied():
    """Dai et al. 2019 prints 0.46B and 0.8B for the One Billion Word models."""
    assert abs(parameters("transformer-xl-base-1b") - 460e6) > 100e6
    assert abs(parameters("transformer-xl-base-1b", tied=False) - 460e6) < 10e6
    assert abs(parameters("transformer-xl-large-1b") - 800e6) < 50e6
    assert abs(parameters("transformer-xl-large-1b", tied=False) - 800e6) > 150e6


@pytest.mark.parametrize(
    ("name", "difference"), [("transformer-xl-large", 28_170_506), ("lstm-8192-2048", 101_878_399)]
)
def test_unexplained_differences_stay_named(name, difference):
    """From the sizes that Dai et al. 2019 and Jozefowicz et al. 2016, Table 1, print."""
    model = CATALOGUE[name].model
    assert parameters(name) - model.published_value == difference > model.published_tolerance
    assert model.reason.startswith("unexplained")


def test_torch_would_give_zaremba_a_second_bias():
    """torch.nn.LSTM has two biases in each of its 4 gates, Zaremba et al. 2014 one."""
    more = parameters("zaremba-large", hidden_bias=True) - parameters("zaremba-large")
    assert more == 2 * 4 * 1500


@pytest.mark.parametrize(
    ("name", "without_heads"), [("bert-base", 109_482_240), ("bert-large", 335_141_888)]
)
def test_bert_without_its_heads(name, without_heads):
    """`transformers.BertModel` is the encoder and the pooler."""
    bare = parameters(name, transform=False, next_sentence=False, head_bias=False)
    assert bare == without_heads


@pytest.mark.parametrize("name", [name for name in CATALOGUE.bases if name.startswith("rwkv-4-")])
def test_rwkv_formula_of_the_paper(name):
    """Peng et al. 2023: parameters by vocabulary, width and depth."""
    a = named_architecture(CATALOGUE[name])
    words, width, depth = a.n_vocab, a.d_model, a.n_layer
    assert parameters(name) == 2 * words * width + 13 * width**2 * depth + width * (11 * depth + 4)


@pytest.mark.parametrize(
    ("name", "words", "rows"), [("mamba-130m", 50_277, 50_280), ("mamba-2-130m", 50_277, 50_288)]
)
def test_padded_vocabularies(name, words, rows):
    assert named_architecture(CATALOGUE[name]).n_vocab == rows
    assert parameters(name) - parameters(name, n_vocab=words) == (rows - words) * 768
