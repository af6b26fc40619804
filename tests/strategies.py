"""Random legal architectures, small enough to build by the hundred."""

from hypothesis import strategies as st

from modelbudget.families.decoder import Decoder
from modelbudget.families.hybrid import Hybrid

SWITCHES = [
    "gated", "head_bias", "key_bias", "output_bias", "query_bias", "tied", "up_bias", "value_bias",
    "down_bias",
]  # fmt: skip
small = st.integers(1, 9)


@st.composite
def sizes_and_switches(draw) -> dict:
    """What decoder and hybrid share."""
    n_kv_head = draw(st.integers(1, 3))
    norm = draw(st.sampled_from(["layernorm", "rmsnorm"]))
    norm_scale = draw(st.booleans())
    return {
        "n_vocab": draw(small),
        "d_model": draw(small),
        "n_layer": draw(st.integers(1, 3)),
        "n_kv_head": n_kv_head,
        "n_head": n_kv_head * draw(st.integers(1, 3)),
        "d_head": 2 * draw(st.integers(1, 4)),
        "d_ff": draw(small),
        "norm": norm,
        "norm_scale": norm_scale,
        "norm_bias": norm == "layernorm" and norm_scale and draw(st.booleans()),
        "activation": draw(st.sampled_from(["gelu", "relu", "silu"])),
        **{name: draw(st.booleans()) for name in SWITCHES},
    }


@st.composite
def decoders(draw) -> Decoder:
    return Decoder(
        **draw(sizes_and_switches()),
        n_ctx=draw(st.integers(8, 12)),
        position=draw(st.sampled_from(["none", "learned", "rotary"])),
        parallel=draw(st.booleans()),
        final_norm=draw(st.booleans()),
    )


@st.composite
def hybrids(draw) -> Hybrid:
    return Hybrid(**draw(sizes_and_switches()), d_hidden=draw(small))


architectures = decoders() | hybrids()
