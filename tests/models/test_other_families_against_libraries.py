"""Our modules against other people's: the same counts at full size, the same numbers from the
same weights at small size."""

import logging
import re
from functools import partial

import pytest
import torch
from helpers.catalogue import CATALOGUE
from helpers.other_families import SHAPES, TINY_MODELS, TOKENS
from helpers.transformers_models import (
    albert,
    bart,
    bert,
    mamba,
    mamba2,
    marian,
    modernbert,
    roberta,
    rwkv,
    t5,
)
from torch import nn
from transformers.models.t5.modeling_t5 import T5Attention

from modelbudget.architecture.terms import total
from modelbudget.families.encoder_decoder import EncoderDecoder
from modelbudget.families.recurrent_lm import RecurrentLM
from modelbudget.families.transformer_xl import TransformerXL
from modelbudget.huggingface.write_config import config_of
from modelbudget.measurement.build import build
from modelbudget.measurement.reference.class_counts import build as build_class
from modelbudget.modules.initialise import initialise
from modelbudget.modules.position import bucket
from modelbudget.modules.recurrent_layer import RecurrentLayer
from modelbudget.sweeps.derive import named_architecture

TARGETS = torch.tensor([[2, 7, 1, 8, 2], [8, 1, 8, 2, 8]])


@pytest.fixture(autouse=True)
def quiet():
    """transformers warns of special tokens outside a tiny vocabulary, and of slow paths."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def of_config(kind: str, a):
    return build_class(kind, config_of(kind, a))


MAKE = {
    "BertForPreTraining": bert, "RobertaForMaskedLM": roberta, "AlbertForPreTraining": albert,
    "ModernBertForMaskedLM": modernbert, "T5ForConditionalGeneration": t5,
    "MambaForCausalLM": mamba, "FalconMambaForCausalLM": mamba, "Mamba2ForCausalLM": mamba2,
    "RwkvForCausalLM": rwkv,
    **{kind: partial(of_config, kind) for kind in ("ZambaForCausalLM", "Zamba2ForCausalLM")},
}  # fmt: skip
WITH_CLASS = [
    name
    for name, base in CATALOGUE.bases.items()
    if base.model and base.family in SHAPES and base.model.transformers
]


@pytest.mark.parametrize("name", WITH_CLASS)
def test_counts_equal_those_of_transformers_classes(name):
    architecture, model = named_architecture(CATALOGUE[name]), CATALOGUE[name].model
    with torch.device("meta"):
        theirs = MAKE[model.transformers](architecture)
    assert type(theirs).__name__ == model.transformers
    # transformers 5 ties T5's head against the config; the v1.1 checkpoints are untied.
    tied_by_force = name.startswith("t5-v1-1-") * architecture.n_vocab * architecture.d_model
    count = sum(p.numel() for p in theirs.parameters())
    assert total(architecture.parameters(architecture)) == count + tied_by_force


# Names of our parameters in their state: patterns for their names, tried in order.

LAYER_NORMED = [
    (r"attention\.output\.LayerNorm", "norm.attention"), (r"output\.LayerNorm", "norm.mlp"),
    (r"attention\.self", "attention"), (r"attention\.output\.dense", "attention.output"),
    (r"intermediate\.dense", "mlp.up"), (r"(layer\.\d+\.)output\.dense", r"\1mlp.down"),
]  # fmt: skip
EMBEDDED = [
    (r".*embeddings\.word_embeddings", "embedding.token"),
    (r".*embeddings\.position_embeddings", "embedding.position"),
    (r".*embeddings\.token_type_embeddings", "embedding.segment"),
    (r".*embeddings\.LayerNorm", "embedding.norm"),
]
BERT = [
    *EMBEDDED, *LAYER_NORMED, (r"bert\.encoder\.", ""), (r"bert\.pooler\.dense", "pooler"),
    (r"cls\.seq_relationship", "next_sentence"), (r"cls\.predictions\.decoder", "head"),
    (r"cls\.predictions\.transform\.", "transform."), ("LayerNorm", "norm"),
]  # fmt: skip
ROBERTA = [
    *EMBEDDED, *LAYER_NORMED, (r"roberta\.encoder\.", ""), (r"lm_head\.dense", "transform.dense"),
    (r"lm_head\.layer_norm", "transform.norm"), (r"lm_head\.decoder", "head"),
]  # fmt: skip
ALBERT = [
    *EMBEDDED, (r"albert\.encoder\.embedding_hidden_mapping_in", "embedding.projection"),
    (r"albert\.encoder\.albert_layer_groups\.(\d)\.albert_layers\.0", r"layer.\1"),
    ("full_layer_layer_norm", "norm.mlp"), (r"attention\.LayerNorm", "norm.attention"),
    (r"attention\.dense", "attention.output"), (r"ffn\.", "mlp.up."), ("ffn_output", "mlp.down"),
    (r"albert\.pooler", "pooler"), (r"sop_classifier\.classifier", "next_sentence"),
    (r"predictions\.decoder", "head"), (r"predictions\.LayerNorm", "transform.norm"),
    (r"predictions\.dense", "transform.dense"),
]  # fmt: skip
MODERNBERT = [
    (r"model\.embeddings\.tok_embeddings", "embedding.token"),
    (r"model\.embeddings\.norm", "embedding.norm"), (r"model\.final_norm", "norm.final"),
    (r"model\.layers", "layer"), (r"attn_norm", "norm.attention"), ("mlp_norm", "norm.mlp"),
    (r"attn\.Wo", "attention.output"), (r"mlp\.Wo", "mlp.down"),
    (r"head\.(dense|norm)", r"transform.\1"), ("decoder", "head"),
]  # fmt: skip
T5 = [
    (r"shared\.", "embedding.token."), ("lm_head", "head"), (r"block\.", "layer."),
    (r"layer\.0\.layer\.0\.SelfAttention\.relative_attention_bias", "position"),
    (r"\.layer\.\d\.SelfAttention", ".attention"), (r"\.layer\.\d\.EncDecAttention", ".cross"),
    (r"\.layer\.\d\.DenseReluDense", ".mlp"), (r"wi_0|wi_gate", "gate"), (r"wi_1|wi\b", "up"),
    (r"\bwo\b", "down"), (r"\.layer\.0\.layer_norm", ".norm.attention"),
    (r"encoder(.*)\.layer\.1\.layer_norm", r"encoder\1.norm.mlp"),
    (r"\.layer\.1\.layer_norm", ".norm.cross"), (r"\.layer\.2\.layer_norm", ".norm.mlp"),
    ("final_layer_norm", "norm.final"), (r"\.q\.", ".query."), (r"\.k\.", ".key."),
    (r"\.v\.", ".value."), (r"\.o\.", ".output."),
]  # fmt: skip
BART = [
    (r"model\.shared", "embedding.token"), ("lm_head", "head"), (r"^model\.", ""),
    ("layers", "layer"), ("embed_positions", "position"), ("layernorm_embedding", "norm.embedding"),
    ("self_attn_layer_norm", "norm.attention"), ("encoder_attn_layer_norm", "norm.cross"),
    ("final_layer_norm", "norm.mlp"), ("self_attn", "attention"), ("encoder_attn", "cross"),
    ("out_proj", "output"), ("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"),
    ("fc1", "mlp.up"), ("fc2", "mlp.down"),
]  # fmt: skip
MAMBA = [
    (r"backbone\.embeddings", "embedding.token"), (r"backbone\.layers", "layer"),
    (r"backbone\.norm_f", "norm.final"), ("lm_head", "head"), ("in_proj", "input"),
    ("conv1d", "convolution"), ("x_proj", "selection"), ("dt_proj", "step"), ("dt_bias", "step"),
    ("A_log", "decay"), (r"\bD$", "skip"), ("out_proj", "output"),
]  # fmt: skip
RWKV = [
    (r"rwkv\.embeddings", "embedding.token"), (r"rwkv\.blocks", "layer"),
    (r"layer\.0\.pre_ln", "embedding.norm"), (r"rwkv\.ln_out", "norm.final"),
    ("ln1", "norm.time"), ("ln2", "norm.channel"), ("attention", "time"),
    ("feed_forward", "channel"), ("time_decay", "decay"), ("time_first", "bonus"),
]  # fmt: skip


def renamed(model, patterns) -> dict:
    state = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        for pattern, ours in patterns:
            name = re.sub(pattern, ours, name)
        state[name] = value.detach()
    return state


def unpack_modernbert(state: dict) -> None:
    """Theirs packs query, key and value, and gate and up, into one matrix each."""
    for name in list(state):
        for packed, parts in (
            ("attn.Wqkv", ("attention.query", "attention.key", "attention.value")),
            ("mlp.Wi", ("mlp.gate", "mlp.up")),
        ):
            if packed in name:
                for part, value in zip(parts, state[name].chunk(len(parts)), strict=True):
                    state[name.replace(packed, part)] = value


def pack_rwkv(state: dict) -> None:
    """Theirs has one vector for each blend."""
    for i in range(2):
        for mixer, blends in (("time", ("receptance", "key", "value")),
                              ("channel", ("receptance", "key"))):  # fmt: skip
            where = f"layer.{i}.{mixer}."
            state[f"{where}mix"] = torch.cat([state[f"{where}time_mix_{b}"] for b in blends])


REPACK = {"ModernBERT": unpack_modernbert, "RWKV-4": pack_rwkv}
EQUAL = {
    "BERT": (bert, BERT), "RoBERTa": (roberta, ROBERTA), "ALBERT": (albert, ALBERT),
    "ModernBERT": (modernbert, MODERNBERT), "T5": (t5, T5), "gated T5": (t5, T5),
    "BART": (bart, BART), "the first Transformer": (marian, BART), "Mamba": (mamba, MAMBA),
    "Falcon Mamba": (mamba, MAMBA), "Mamba-2": (mamba2, MAMBA), "RWKV-4": (rwkv, RWKV),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_logits_equal_those_of_transformers(name):
    (make, patterns), architecture = EQUAL[name], TINY_MODELS[name]
    torch.manual_seed(0)
    theirs = make(architecture).eval()
    for parameter in theirs.parameters():
        if parameter.requires_grad:  # all but sinusoids
            nn.init.normal_(parameter, std=0.3)
    ours = build(architecture, "cpu", "float32")
    state = renamed(theirs, patterns)
    REPACK.get(name, lambda state: None)(state)
    ours.load_state_dict({k: state[k].view_as(v) for k, v in ours.state_dict().items()})
    inputs, extra = (TOKENS,), {}
    if isinstance(architecture, EncoderDecoder):
        inputs, extra = (TOKENS, TARGETS), {"decoder_input_ids": TARGETS}
    with torch.no_grad():
        expected = theirs(TOKENS, attention_mask=torch.ones_like(TOKENS), **extra)
        logits = expected.logits if "logits" in expected else expected.prediction_logits
        assert torch.allclose(ours(*inputs), logits, atol=1e-5)
        assert logits.std() > 0.01
        if getattr(architecture, "pooler", False):
            relation = expected.get("seq_relationship_logits", expected.get("sop_logits"))
            assert torch.allclose(ours.relation(TOKENS), relation, atol=1e-5)


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("n_bucket", "max_distance"), [(32, 128), (8, 6), (4, 100)])
def test_buckets_equal_those_of_transformers(both_ways, n_bucket, max_distance):
    distance = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(distance, both_ways, n_bucket, max_distance)
    assert torch.equal(bucket(distance, n_bucket, max_distance, both_ways), theirs)


# Torch warns when it computes projected layers without oneDNN.
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm", "projected lstm"])
@pytest.mark.parametrize("biased", [True, False])
def test_recurrent_layers_equal_torch(kind, biased):
    torch.manual_seed(0)
    projected, cell = "projected" in kind, kind.split()[-1]
    a = RecurrentLM(
        n_vocab=2, d_model=3, n_layer=1, cell=cell, d_hidden=5, d_last=5, projected=projected,
        d_projection=2, input_bias=biased, hidden_bias=biased, tied=False,
    )  # fmt: skip
    size = {"proj_size": 2} if projected else {}
    theirs = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[cell](
        3, 5, bias=biased, batch_first=True, **size
    )
    ours = RecurrentLayer(a, 3, 5)
    names = {"ih": "input", "hh": "hidden", "hr": "projection"}
    state = {}
    for name, value in theirs.named_parameters():
        part, which, _ = name.split("_")
        state[f"{names[which]}.{part}"] = value
    ours.load_state_dict(state)
    x = torch.randn(2, 7, 3)
    assert torch.allclose(ours(x), theirs(x)[0], atol=1e-6)


def test_awd_lstm_counts_equal_torch(catalogue):
    a = named_architecture(catalogue["awd-lstm-wikitext-2"])
    with torch.device("meta"):
        widths = [(400, 1150), (1150, 1150), (1150, 400)]
        theirs = nn.ModuleList(nn.LSTM(*sizes) for sizes in widths)
        theirs.append(nn.Embedding(33278, 400))
    expected = sum(p.numel() for p in theirs.parameters()) + 33278  # and the head's bias
    assert total(a.parameters(a)) == expected


def test_the_first_transformer_counts_equal_torch(catalogue):
    a = named_architecture(catalogue["transformer-base"])
    with torch.device("meta"):
        layers = [
            nn.TransformerEncoderLayer(512, 8, 2048),
            nn.TransformerDecoderLayer(512, 8, 2048),
        ]
    a_pair = sum(p.numel() for layer in layers for p in layer.parameters())
    assert total(a.parameters(a)) == 6 * a_pair + 37000 * 512


@pytest.mark.parametrize("tied_projections", [False, True])
def test_adaptive_softmax_equals_torch(tied_projections):
    torch.manual_seed(0)
    a = TransformerXL(
        n_vocab=23, d_model=8, n_layer=1, n_head=2, d_head=4, d_ff=8, adaptive=True, cutoff_1=5,
        cutoff_2=9, cutoff_3=16, projected=True, d_cluster_2=4, d_cluster_3=2, d_cluster_4=1,
        tied=False, tied_projections=tied_projections,
    )  # fmt: skip
    model = build(a, "cpu", "float32")
    initialise(model)
    head = model.head
    theirs = nn.AdaptiveLogSoftmaxWithLoss(8, 23, [5, 9, 16], div_value=2.0, head_bias=True)
    with torch.no_grad():
        nn.init.normal_(head.word[0].bias)  # torch has biases in the first cluster only
        first = head.word[0].weight @ head.projection[0].weight.T
        theirs.head.weight.copy_(torch.cat((first, head.cluster.weight)))
        theirs.head.bias.copy_(torch.cat((head.word[0].bias, head.cluster.bias)))
        for i, tail in enumerate(theirs.tail, start=1):
            tail[0].weight.copy_(head.projection[i].weight.T)
            tail[1].weight.copy_(head.word[i].weight)
        x = torch.randn(3, 8)
        ours = head(x.unsqueeze(0))[0]
        assert torch.allclose(ours, theirs.log_prob(x), atol=1e-5)
        assert torch.allclose(ours.exp().sum(-1), torch.ones(3), atol=1e-5)
