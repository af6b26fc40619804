"""What makes each shape what it is: who sees whom, and what is shared."""

import pytest
import torch
from helpers.other_families import TINY_MODELS, TINY_STACKS, TOKENS
from torch.nn import functional as F

from modelbudget.families.encoder_decoder import EncoderDecoder
from modelbudget.families.recurrent_lm import CharacterLM
from modelbudget.measurement.build import build

CHANGED = torch.cat((TOKENS[:, :5], 10 - TOKENS[:, 5:]), dim=1)
XL = TINY_MODELS["Transformer-XL"]


def made(architecture):
    model = build(architecture, "cpu", "float32")
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize("name", ["Mamba", "Mamba-2", "RWKV-4", "Transformer-XL", "LSTM"])
def test_a_token_does_not_see_the_future(name):
    model = made(TINY_MODELS[name])
    before, after = model(TOKENS), model(CHANGED)
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-5)
    assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-3)


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "buckets"])
def test_a_target_sees_all_of_the_source_and_none_of_its_own_future(position):
    model = made(EncoderDecoder(**TINY_STACKS, position=position, n_bucket=8, max_distance=9))
    before, target, source = model(TOKENS, TOKENS), model(TOKENS, CHANGED), model(CHANGED, TOKENS)
    assert torch.allclose(before[:, :5], target[:, :5], atol=1e-5)
    assert not torch.allclose(before[:, :5], source[:, :5], atol=1e-3)
    assert torch.equal(model(TOKENS), before)


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_an_encoder_sees_both_ways(position):
    model = made(TINY_MODELS["BERT"].model_copy(update={"position": position}))
    assert not torch.allclose(model(TOKENS)[:, 0], model(CHANGED)[:, 0], atol=1e-3)


def test_segments_matter():
    model = made(TINY_MODELS["BERT"])
    second = torch.tensor([[0] * 4 + [1] * 4] * 2)
    assert not torch.allclose(model(TOKENS), model(TOKENS, second), atol=1e-3)
    assert torch.equal(model(TOKENS), model(TOKENS, torch.zeros_like(TOKENS)))


def test_local_layers_see_half_a_window_each_way():
    model = made(TINY_MODELS["ModernBERT"])
    states = torch.randn(2, 8, 8)
    changed = states.clone()
    changed[:, 7] = torch.randn(8)
    mask = model.local_mask(TOKENS)
    difference = (model.layer[1](states, mask) - model.layer[1](changed, mask)).abs().amax((0, 2))
    assert (difference > 1e-5).tolist() == [False] * 5 + [True] * 3


def test_a_shared_layer_is_passed_again():
    shared = TINY_MODELS["ALBERT"]
    model = made(shared)
    apart = build(shared.model_copy(update={"n_distinct": 4}), "cpu", "float32")
    state = model.state_dict()
    for i in range(4):
        old = f"layer.{i // 2}."
        state |= {
            f"layer.{i}." + name.removeprefix(old): value
            for name, value in model.state_dict().items()
            if name.startswith(old)
        }
    apart.load_state_dict(state)
    assert torch.allclose(model(TOKENS), apart(TOKENS), atol=1e-5)


def test_a_segment_with_its_memory_is_as_good_as_the_whole():
    model = made(XL)
    first, memory = model.segment(TOKENS[:, :3], None)
    second, memory = model.segment(TOKENS[:, 3:5], memory)
    third, _ = model.segment(TOKENS[:, 5:], memory)
    assert torch.allclose(torch.cat((first, second, third), dim=1), model(TOKENS), atol=1e-4)


def test_relative_attention_term_by_term():
    """Dai et al. 2019, §3.3: the four terms of a score, one query and key at a time."""
    attention = made(XL).layer[0].attention
    x, waves = torch.randn(1, 4, 8), torch.randn(4, 8)
    u, v = torch.randn(6), torch.randn(6)
    q, k, values, r = (
        layer(y).unflatten(-1, (2, 3))
        for layer, y in (
            (attention.query, x[0]), (attention.key, x[0]), (attention.value, x[0]),
            (attention.distance, waves),
        )
    )  # fmt: skip
    u_heads, v_heads = u.unflatten(0, (2, 3)), v.unflatten(0, (2, 3))
    rows = []
    for i in range(4):
        mixed = []
        for h in range(2):
            scores = torch.stack(
                [
                    q[i, h] @ k[j, h] + q[i, h] @ r[i - j, h]
                    + u_heads[h] @ k[j, h] + v_heads[h] @ r[i - j, h]
                    for j in range(i + 1)
                ]
            )  # fmt: skip
            mixed.append(F.softmax(scores / 3**0.5, dim=0) @ values[: i + 1, h])
        rows.append(attention.output(torch.cat(mixed)))
    ours = attention(x, x[:, :0], waves, {"content": u, "distance": v})
    assert torch.allclose(ours[0], torch.stack(rows), atol=1e-5)


def test_adaptive_input_looks_a_word_up_in_its_cluster():
    a = XL.model_copy(
        update={
            "adaptive": True, "cutoff_1": 2, "cutoff_2": 5, "cutoff_3": 8, "projected": True,
            "d_cluster_2": 4, "d_cluster_3": 2, "d_cluster_4": 1,
        }
    )  # fmt: skip
    words = made(a).embedding
    for token, cluster, row in ((1, 0, 1), (2, 1, 0), (7, 2, 2), (10, 3, 2)):
        expected = words.projection[cluster](words.token[cluster].weight[row])
        assert torch.allclose(words(torch.tensor([[token]]))[0, 0], expected, atol=1e-6)


def test_words_are_known_by_their_letters_in_order():
    a = CharacterLM(
        n_vocab=11, d_model=8, n_layer=1, d_hidden=5, d_last=5, d_projection=5, n_character=30,
        d_character=4, n_filter=16, n_span=4, n_narrow=2,
    )  # fmt: skip
    words = made(a).embedding
    letters = torch.tensor([[[1, 2, 3, 4, 5, 0], [2, 1, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0]]])
    vectors = words(letters)[0]
    assert torch.equal(vectors[0], vectors[2])
    assert not torch.allclose(vectors[0], vectors[1], atol=1e-3)
    states = words.character(letters[0, 0])
    strongest = [
        max(torch.relu((kernel.T * states[at : at + span]).sum() + bias) for at in range(7 - span))
        for span, filters in enumerate(words.filter, start=1)
        for kernel, bias in zip(filters.weight, filters.bias, strict=True)
    ]
    x = torch.stack(strongest)
    for highway in words.highway:
        gate = torch.sigmoid(highway.gate(x))
        x = gate * torch.relu(highway.transform(x)) + (1 - gate) * x
    assert torch.allclose(vectors[0], words.projection(x), atol=1e-5)
    assert [f.weight.shape for f in words.filter] == [(2, 4, 1), (2, 4, 2), (4, 4, 3), (8, 4, 4)]
