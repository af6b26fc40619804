"""Architectures of the shapes that are not decoders: random legal ones, and a tiny one of each
kind; and what to feed them."""

import math

import torch
from hypothesis import strategies as st

from helpers.strategies import hybrids, runs
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.families import families
from modelbudget.families.encoder import Encoder
from modelbudget.families.encoder_decoder import EncoderDecoder
from modelbudget.families.hybrid import Hybrid
from modelbudget.families.recurrent_lm import CharacterLM, RecurrentLM
from modelbudget.families.rwkv import RWKV, RWKV5, RWKV6, RWKV7
from modelbudget.families.state_space import SelectiveScan, StateSpaceDual
from modelbudget.families.transformer_xl import TransformerXL
from modelbudget.families.zamba import Zamba, Zamba2

SHAPES = [
    Encoder, EncoderDecoder, RecurrentLM, CharacterLM, SelectiveScan, StateSpaceDual, RWKV,
    RWKV5, RWKV6, RWKV7, TransformerXL, Zamba, Zamba2,
]  # fmt: skip
LENGTH = 5
torch.set_num_threads(1)  # tiny products: more threads only wait for each other


@st.composite
def architectures(draw, family: type[Architecture]) -> Architecture:
    """Every field of the family drawn: a switch as it falls, a word of those allowed, a size from
    1 (or 0) to 6; then the fields that depend on one another brought into line.
    """
    fields = {}
    for name, field in family.model_fields.items():
        allowed = getattr(field.annotation, "__args__", None)
        least = min(getattr(limit, "ge", 1) for limit in field.metadata or [None])
        if field.annotation is bool:
            fields[name] = draw(st.booleans())
        else:
            fields[name] = draw(st.sampled_from(allowed) if allowed else st.integers(least, 6))
    LEGAL[family](fields, draw)
    if "norm_bias" in fields:
        fields["norm_bias"] &= fields["norm"] == "layernorm" and fields["norm_scale"]
    if "n_ctx" in fields:
        fields["n_ctx"] += LENGTH
    if "position_offset" in fields:
        fields["position_offset"] *= fields["position"] == "learned"
    return family(**fields)


def _encoder(f, draw):
    if f["norm_placement"] == "pre" and not f["first_norm"]:
        f["n_layer"] = f["n_distinct"]
    else:
        f["first_norm"] = True
        f["n_layer"] = f["n_distinct"] * draw(st.integers(1, 3))
    if f["causal"]:
        f["n_layer"] = f["n_distinct"]
    f["lm_head"] = True  # without it there is no training
    f["transform"] |= f["d_emb"] > 0
    if f["activation"] == "xielu" and f["transform"]:
        f["activation"] = "gelu"
    f["next_sentence"] &= f["pooler"]
    f["d_head"] *= 2


def _encoder_decoder(f, draw):
    f["n_bucket"] *= 4
    f["max_distance"] += f["n_bucket"]
    f["mlps"] = draw(st.sampled_from(["mlp", "mlp moe", "moe"]))
    if f["mlps"] == "mlp":
        f |= dict.fromkeys(("n_expert", "n_expert_per_token", "d_expert", "d_shared"), 0)
    else:
        f["n_expert_per_token"] = max(1, f["n_expert_per_token"])
        f["n_expert"] += f["n_expert_per_token"]
        f["d_expert"] += 1
        f["activation"] = "relu" if f["activation"] == "xielu" else f["activation"]
    f["shared_gate"] &= f["d_shared"] > 0
    f["moe_bias"] &= f["n_expert"] > 0
    if f["router_bias"] == "selection":  # which gets no gradient
        f["router_bias"] = "none"


def _recurrent_layers(f, draw):
    if f["n_layer"] == 1:
        f["d_last"] = f["d_hidden"]
    f["projected"] &= f["cell"] == "lstm"


def _recurrent(f, draw):
    _recurrent_layers(f, draw)
    f["tied"] &= f["d_model"] == (f["d_projection"] if f["projected"] else f["d_last"])


def _character(f, draw):
    _recurrent_layers(f, draw)
    f["n_filter"] = f["n_narrow"] * 2 ** (f["n_span"] - 1)
    f["n_letter"] += f["n_span"]


def _dual(f, draw):
    f["n_head"] *= f["n_group"]
    f["d_inner"] = f["n_head"] * f["d_head"]


def _transformer_xl(f, draw):
    cutoffs = draw(st.lists(st.integers(1, 9), min_size=4, max_size=4, unique=True).map(sorted))
    if not f["adaptive"]:
        cutoffs[:3] = 0, 0, 0
        f["projected"] = False
    f["cutoff_1"], f["cutoff_2"], f["cutoff_3"], f["n_vocab"] = cutoffs
    f["tied_projections"] &= f["projected"]
    if not f["projected"]:
        f |= dict.fromkeys(("d_cluster_2", "d_cluster_3", "d_cluster_4"), f["d_model"])


def _zamba(f, draw):
    words = [draw(st.sampled_from(["selective_scan", "hybrid"])) for _ in range(f["n_layer"])]
    f["mixers"] = " ".join(words)
    f["n_scan_head"] = 1 if f["scan_norm"] else draw(st.integers(1, 3))
    f["d_scan"] *= f["n_scan_head"]
    _shared_block(f)


def _zamba2(f, draw):
    words = [draw(st.sampled_from(["mamba2", "hybrid"])) for _ in range(f["n_layer"])]
    f["mixers"] = " ".join(words)
    f["n_mamba_head"] *= f["n_mamba_group"]
    _shared_block(f)


def _shared_block(f):
    f["attention_adapter"] &= f["d_adapter"] > 0
    f["d_head"] *= 2


def _matrix_rwkv(f, draw):
    f["d_model"] = f["n_head"] * f["d_head"]


def _any(f, draw):
    pass


OFF = {
    "dropout": False, "recompute": "none", "norm_kernel": "fused", "activation_kernel": "fused",
    "projections": "separate", "gate_and_up": "separate", "expert_kernel": "scattered",
    "rope_tables": "layer", "embedding_scale": "none", "embeddings": "freed",
    "cache_growth": "in_place", "next_logits": "freed",
}  # fmt: skip
"""Switches of a run that only layers of decoders have."""


READ_TOKENS = [*(one for one in SHAPES if one.is_language_model()), Hybrid]


@st.composite
def trained(draw, family: type[Architecture] | None = None) -> tuple[Architecture, RunConfig]:
    """An architecture that reads tokens, of a family or of any, and a run that it allows."""
    family = draw(st.sampled_from(READ_TOKENS)) if family is None else family
    a = draw(hybrids() if family is Hybrid else architectures(family))
    run = draw(runs()).model_copy(update=OFF)
    if isinstance(a, Encoder | EncoderDecoder | Hybrid | Zamba | Zamba2):
        wide = dict.fromkeys({"d_head", "d_value"} & type(a).model_fields.keys(), 8)
        a = a.model_copy(update=wide if run.attention_kernel != "math" else {})
    if run_mistake(a, run) or getattr(a, "window", 0):
        run = run.model_copy(update={"attention_kernel": "math"})
    if isinstance(a, Encoder | EncoderDecoder):
        run = run.model_copy(update={"recompute": draw(st.sampled_from(["none", "full"]))})
    if isinstance(a, EncoderDecoder):
        run = run.model_copy(update={"target_length": draw(st.integers(0, 6))})
    return a, run


LEGAL = {
    Encoder: _encoder,
    EncoderDecoder: _encoder_decoder,
    RecurrentLM: _recurrent,
    CharacterLM: _character,
    SelectiveScan: _any,
    StateSpaceDual: _dual,
    RWKV: _any,
    RWKV5: _matrix_rwkv,
    RWKV6: _matrix_rwkv,
    RWKV7: _matrix_rwkv,
    TransformerXL: _transformer_xl,
    Zamba: _zamba,
    Zamba2: _zamba2,
}


def input_for(a: Architecture) -> torch.Tensor:
    """Two sequences that the model can read: tokens, or characters where words have letters.

    Both come from all parts of the vocabulary.
    """
    if isinstance(a, CharacterLM):
        shape, n = (2, LENGTH, a.n_letter), a.n_character
    else:
        shape, n = (2, LENGTH), a.n_vocab
    return (7 * torch.arange(math.prod(shape)) % n).reshape(shape)


TINY = {"n_vocab": 11, "d_model": 8, "norm_bias": True}
TINY_ENCODER = TINY | {
    "n_layer": 4, "n_distinct": 4, "n_head": 2, "d_head": 4, "d_value": 4, "d_ff": 12, "n_ctx": 10,
    "up_bias": True, "down_bias": True, "head_bias": True,
}  # fmt: skip
TINY_STACKS = TINY | {
    "n_encoder_layer": 2, "n_decoder_layer": 3, "n_head": 2, "d_head": 4, "d_value": 4, "d_ff": 12,
    "n_ctx": 10,
}  # fmt: skip
T5_SWITCHES = {
    "position": "buckets", "n_bucket": 8, "max_distance": 6, "norm": "rmsnorm", "norm_bias": False,
    "norm_placement": "pre", "final_norm": True, "attention_bias": False, "activation": "relu",
}  # fmt: skip
TINY_MAMBA = {"n_vocab": 11, "n_layer": 2, "d_model": 8, "d_inner": 16, "norm": "rmsnorm"}
TINY_ZAMBA = TINY | {
    "norm": "rmsnorm", "norm_bias": False, "n_layer": 4, "n_head": 2, "d_head": 8, "d_ff": 12,
}  # fmt: skip
TINY_HEADS = TINY | {"n_layer": 3, "n_head": 2, "d_head": 4, "d_ff": 12, "tied": False}
TINY_MODELS = {
    "BERT": Encoder(**TINY_ENCODER, n_segment=2, pooler=True, next_sentence=True),
    "RoBERTa": Encoder(**TINY_ENCODER, n_segment=1, position_offset=1),
    "ALBERT": Encoder(
        **TINY_ENCODER | {"n_distinct": 2, "d_emb": 4}, n_segment=2,
        pooler=True, next_sentence=True,
    ),
    "ModernBERT": Encoder(
        **TINY_ENCODER | {"norm_bias": False, "up_bias": False, "down_bias": False},
        position="rotary", attention_bias=False, norm_placement="pre", first_norm=False,
        final_norm=True, gated=True, transform_bias=False, window=4, global_every=3,
    ),
    "T5": EncoderDecoder(**TINY_STACKS | T5_SWITCHES),
    "gated T5": EncoderDecoder(**TINY_STACKS | T5_SWITCHES, gated=True),
    "BART": EncoderDecoder(
        **TINY_STACKS, position="learned", position_offset=2, embedding_norm=True, up_bias=True,
        down_bias=True,
    ),
    "the first Transformer": EncoderDecoder(
        **TINY_STACKS, activation="relu", up_bias=True, down_bias=True
    ),
    "Mamba": SelectiveScan(**TINY_MAMBA, d_state=5, d_step=3),
    "Falcon Mamba": SelectiveScan(
        **TINY_MAMBA, d_state=5, d_step=3, inner_norm=True, tied=False
    ),
    "Mamba-2": StateSpaceDual(**TINY_MAMBA, n_head=4, d_head=4, n_group=2, d_state=5),
    "RWKV-4": RWKV(**TINY, n_layer=2, d_ff=12, tied=False),
    "RWKV-5": RWKV5(**TINY_HEADS),
    "RWKV-6": RWKV6(**TINY_HEADS, d_mix=3, d_decay=5),
    "RWKV-7": RWKV7(**TINY_HEADS, d_decay=3, d_rate=5, d_value_mix=2, d_gate=4),
    "Zamba": Zamba(
        **TINY_ZAMBA, mixers="selective_scan hybrid hybrid", d_scan=16, d_scan_state=5,
        d_scan_step=3, n_scan_head=2,
    ),
    "Zamba2": Zamba2(
        **TINY_ZAMBA, mixers="mamba2 hybrid hybrid hybrid", n_shared_block=2, d_adapter=3,
        attention_adapter=True, position="rotary", n_mamba_head=4, d_mamba_head=4, n_mamba_group=2,
        d_mamba_state=5,
    ),
    "Transformer-XL": TransformerXL(
        **TINY, n_layer=3, n_head=2, d_head=3, d_ff=12, up_bias=True, down_bias=True,
        activation="relu", d_cluster_2=8, d_cluster_3=8, d_cluster_4=8,
    ),
    "LSTM": RecurrentLM(n_vocab=11, d_model=6, n_layer=2, d_hidden=7, d_last=6, d_projection=7),
    "LSTM of characters": CharacterLM(
        n_vocab=11, d_model=6, n_layer=2, d_hidden=7, d_last=6, d_projection=7, n_character=30,
        d_character=4, n_filter=16, n_span=4, n_narrow=2, n_letter=5,
    ),
}  # fmt: skip
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 10]])

assert set(LEGAL) == set(SHAPES) <= set(families().values())
