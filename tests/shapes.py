"""Random legal architectures of the shapes that are not decoders, and what to feed them."""

import math

import torch
from hypothesis import strategies as st

from modelbudget.architecture import Architecture
from modelbudget.families import families
from modelbudget.families.encoder import Encoder
from modelbudget.families.encoder_decoder import EncoderDecoder
from modelbudget.families.recurrent_lm import CharacterLM, RecurrentLM
from modelbudget.families.rwkv import RWKV
from modelbudget.families.state_space import SelectiveScan, StateSpaceDual
from modelbudget.families.transformer_xl import TransformerXL

SHAPES = [
    Encoder, EncoderDecoder, RecurrentLM, CharacterLM, SelectiveScan, StateSpaceDual, RWKV,
    TransformerXL,
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
    return family(**fields)


def _encoder(f, draw):
    if f["norm_first"] and not f["first_norm"]:
        f["n_layer"] = f["n_distinct"]
    else:
        f["first_norm"] = True
        f["n_layer"] = f["n_distinct"] * draw(st.integers(1, 3))
    if f["factorised"]:
        f["transform"] = True
    else:
        f["d_embedding"] = f["d_model"]
    f["next_sentence"] &= f["pooler"]
    f["d_head"] *= 2


def _encoder_decoder(f, draw):
    f["n_bucket"] *= 4
    f["max_distance"] += f["n_bucket"]


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


def _any(f, draw):
    pass


LEGAL = {
    Encoder: _encoder,
    EncoderDecoder: _encoder_decoder,
    RecurrentLM: _recurrent,
    CharacterLM: _character,
    SelectiveScan: _any,
    StateSpaceDual: _dual,
    RWKV: _any,
    TransformerXL: _transformer_xl,
}


def input_for(a: Architecture) -> torch.Tensor:
    """Two sequences that the model can read: tokens, or characters where words have letters.

    Both come from all parts of the vocabulary.
    """
    if isinstance(a, CharacterLM):
        shape, n = (2, LENGTH, a.n_span + 2), a.n_character
    else:
        shape, n = (2, LENGTH), a.n_vocab
    return (7 * torch.arange(math.prod(shape)) % n).reshape(shape)


assert set(LEGAL) == set(SHAPES) <= set(families().values())
