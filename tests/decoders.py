"""Random legal decoders, at sizes where a thousand are built in seconds."""

from hypothesis import strategies as st

from modelbudget.families.decoder import Decoder

small = st.integers(1, 5)
yes_or_no = st.booleans()


@st.composite
def decoders(draw, covered: bool = False) -> Decoder:
    """Every switch, every word and every size is drawn; the record is legal by construction.

    `covered`: only what the formulas of a run hold for.
    """
    kinds = ["attention"] if covered else ["attention", "latent", "recurrent"]
    mixers = draw(st.lists(st.sampled_from(kinds), min_size=1))[:3]
    mlps = draw(st.lists(st.sampled_from(["mlp", "experts"]), min_size=1))[:3]
    parallel = draw(yes_or_no)
    if not parallel and draw(yes_or_no):
        mixers.append("none")
    elif not parallel and draw(yes_or_no):
        mlps.append("none")
    norm = draw(st.sampled_from(["layernorm", "rmsnorm"]))
    norm_scale = draw(yes_or_no)
    n_kv_head = draw(st.integers(1, 3))
    d_head = 2 * draw(small)
    n_layer = draw(small)
    fields = {
        "mixers": " ".join(mixers),
        "mlps": " ".join(mlps),
        "parallel": parallel,
        "shared_norm": draw(yes_or_no),
        "norm_placement": "pre" if parallel else draw(placements),
        "norm": norm,
        "norm_scale": norm_scale,
        "norm_bias": norm == "layernorm" and norm_scale and draw(yes_or_no),
        "embedding_norm": draw(yes_or_no),
        "final_norm": draw(yes_or_no),
        "gated": draw(yes_or_no),
        "activation": draw(st.sampled_from(["gelu", "relu", "silu"])),
        "up_bias": draw(yes_or_no),
        "down_bias": draw(yes_or_no),
        "tied": draw(yes_or_no),
        "head_bias": draw(yes_or_no),
        "n_vocab": draw(st.integers(1, 40)),
        "vocab_multiple": draw(st.integers(1, 9)),
        "d_model": draw(st.integers(1, 9)),
        "d_emb": draw(st.integers(0, 4)),
        "n_layer": n_layer,
        "n_head": n_kv_head * draw(st.integers(1, 3)),
        "n_kv_head": n_kv_head,
        "d_head": d_head,
        "d_ff": draw(small),
        "n_ctx": draw(st.integers(4, 9)),
        "n_bucket": draw(st.integers(1, 40)),
        "q_lora_rank": draw(st.integers(0, 4)),
    }
    positions = ["none", "learned", "sinusoidal", "rotary", "alibi", "buckets", "relative"]
    if "latent" in mixers:
        positions = ["rotary"]
    elif covered or "attention" not in mixers:
        positions = positions[:4]
    fields["position"] = draw(st.sampled_from(positions))
    if fields["position"] == "learned":
        fields["position_offset"] = draw(st.integers(0, 3))
    if fields["position"] == "rotary":
        fields["d_rotary"] = draw(st.integers(0, d_head // 2)) * 2
    if "attention" in mixers:
        for name in ("query_bias", "key_bias", "value_bias", "output_bias"):
            fields[name] = draw(yes_or_no)
        fields["sinks"] = not covered and draw(yes_or_no)
        fields["qk_norm"] = draw(st.sampled_from(["none", "shared", "separate", "joint"]))
        shifts = norm == "layernorm" and norm_scale and fields["qk_norm"] != "none"
        fields["qk_norm_bias"] = shifts and draw(yes_or_no)
    if "latent" in mixers:
        fields |= {name: draw(small) for name in ("kv_lora_rank", "d_nope", "d_value")}
        fields["d_rope"] = 2 * draw(small)
    if "recurrent" in mixers:
        fields["d_hidden"] = draw(small)
    if "experts" in mlps:
        n_expert = draw(small)
        d_shared = draw(st.integers(0, 3))
        fields |= {
            "n_expert": n_expert,
            "n_expert_per_token": draw(st.integers(1, n_expert)),
            "d_expert": draw(small),
            "d_shared": d_shared,
            "shared_gate": d_shared > 0 and draw(yes_or_no),
            "router_bias": draw(st.sampled_from(["none", "logit", "selection"])),
            "n_dense_layer": draw(st.integers(0, n_layer)),
        }
    return Decoder(**fields)


placements = st.sampled_from(["pre", "post", "output", "both"])
