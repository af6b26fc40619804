"""Random legal architectures, small enough to build by the hundred."""

from hypothesis import strategies as st

from modelbudget.architecture.run_config import HALF, RunConfig
from modelbudget.architecture.run_values import MASKS
from modelbudget.families.decoder import Decoder
from modelbudget.families.hybrid import Hybrid
from modelbudget.families.ladder import EmbeddingLM, FeedForwardLM

FULL = ("float32", "float64")
ATTENTION_BIASES = ["query_bias", "key_bias", "value_bias", "output_bias"]
SWITCHES = ["gated", "head_bias", "tied", "up_bias", "down_bias", *ATTENTION_BIASES]
small = st.integers(1, 9)
hidden = small | st.sampled_from([40, 96])
"""Widths inside of a part: of those of the states or above, where other tensors are the peak."""


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
        "d_ff": draw(hidden),
        "norm": norm,
        "norm_scale": norm_scale,
        "norm_bias": norm == "layernorm" and norm_scale and draw(st.booleans()),
        "activation": draw(st.sampled_from(["gelu", "relu", "silu"])),
        **{name: draw(st.booleans()) for name in SWITCHES},
    }


@st.composite
def decoders(draw, covered: bool = False, peaks: bool = False) -> Decoder:
    """Every switch, word and size is drawn; the record is legal by construction.

    `covered`: only what the formulas of a training step hold for; `peaks`: those of its peak, too.
    """
    shared = draw(sizes_and_switches())
    parallel = draw(st.booleans())
    kinds = ["attention", "sliding_attention", "nope_attention", "mla"]
    kinds += [] if peaks else ["channel_rnn"]
    mixers = draw(st.lists(st.sampled_from(kinds), min_size=1))[: shared["n_layer"]]
    mlps = draw(st.lists(st.sampled_from(["mlp", "moe"]), min_size=1))[:3]
    if not parallel:
        draw(st.sampled_from([[], mixers, mlps])).append("none")
    fields = {
        "mixers": " ".join(mixers),
        "mlps": " ".join(mlps),
        "parallel": parallel,
        "norm_placement": "pre" if parallel else draw(placements),
        "vocab_multiple": draw(small),
        "d_emb": draw(st.integers(0, 4)),
        "n_ctx": draw(st.integers(8, 12)),
        "n_bucket": draw(st.integers(1, 40)),
        "q_lora_rank": draw(st.integers(0, 4)),
        **{name: draw(st.booleans()) for name in ("shared_norm", "embedding_norm", "final_norm")},
    }
    fields |= draw(positions(mixers, shared["d_head"], peaks))
    if "sliding_attention" in mixers:
        fields["window"] = draw(small)
    if {"attention", "sliding_attention", "nope_attention"} & {*mixers}:
        fields |= draw(heads(shared, covered))
    else:
        shared |= dict.fromkeys(ATTENTION_BIASES, False)
    if "mla" in mixers:
        fields |= {name: draw(small) for name in ("kv_lora_rank", "d_nope", "d_value")}
        fields["d_rope"] = 2 * draw(small)
    if "channel_rnn" in mixers:
        fields["d_hidden"] = draw(small)
    if "moe" in mlps:
        fields |= draw(experts(shared["n_layer"]))
    return Decoder(**shared | fields)


placements = st.sampled_from(["pre", "post", "output", "both"])


@st.composite
def positions(draw, mixers: list[str], d_head: int, peaks: bool) -> dict:
    words = ["none", "learned", "sinusoidal", "rotary", "alibi", "buckets", "relative"]
    if {"mla", "nope_attention"} & {*mixers}:
        words = ["rotary"]
    elif peaks or not {"attention", "sliding_attention"} & {*mixers}:
        words = words[:4]
    word = draw(st.sampled_from(words))
    sizes = {
        "learned": {"position_offset": draw(st.integers(0, 3))},
        "rotary": {"d_rotary": 2 * draw(st.integers(0, d_head // 2))},
    }
    return {"position": word} | sizes.get(word, {})


@st.composite
def heads(draw, shared: dict, covered: bool) -> dict:
    qk_norm = draw(st.sampled_from(["none", "shared", "separate", "joint"]))
    shifts = shared["norm"] == "layernorm" and shared["norm_scale"] and qk_norm != "none"
    gated = draw(st.booleans())
    return {
        "qk_norm": qk_norm,
        "qk_norm_bias": shifts and draw(st.booleans()),
        "sinks": not covered and draw(st.booleans()),
        "attention_gate": gated,
        "gate_per_head": gated and not covered and draw(st.booleans()),
    }


@st.composite
def experts(draw, n_layer: int) -> dict:
    n_expert = draw(small)
    d_shared = draw(st.integers(0, 3))
    return {
        "n_expert": n_expert,
        "n_expert_per_token": draw(st.integers(1, n_expert)),
        "d_expert": draw(hidden),
        "d_shared": d_shared,
        "shared_gate": d_shared > 0 and draw(st.booleans()),
        "router_bias": draw(st.sampled_from(["none", "logit", "selection"])),
        "n_dense_layer": draw(st.integers(0, n_layer)),
    }


@st.composite
def hybrids(draw) -> Hybrid:
    return Hybrid(**draw(sizes_and_switches()), d_hidden=draw(small))


architectures = decoders() | hybrids()


@st.composite
def runs(draw, closed: bool = False) -> RunConfig:
    """Every word, switch and size is drawn; the record is legal by construction.

    `closed`: only settings with which peaks have closed formulas.
    """
    backend = "gpu" if closed else draw(st.sampled_from(["gpu", "cpu"]))
    attention = draw(st.sampled_from(KERNELS))
    allowed = {"math": [*FULL, *HALF], "flash": HALF, "efficient": ["float32", *HALF]}[attention]
    if backend == "cpu":
        attention, allowed = attention.replace("efficient", "math"), FULL
    dtype = draw(st.sampled_from(allowed))
    drops = (backend, attention) != ("cpu", "flash")
    batch, length = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    copies = dtype in HALF and draw(st.booleans())
    optimizer = draw(st.sampled_from(["sgd", "momentum", "adamw"]))
    kernels = ["single", "foreach", *(["fused"] if optimizer == "adamw" else [])]
    kernel = draw(st.sampled_from(kernels))
    drops_casts = optimizer == "adamw" and kernel != "fused"
    casts = ["together", "one_by_one" if drops_casts else "accumulated", "accumulated"]
    return RunConfig(
        batch=batch,
        length=length,
        dtype=dtype,
        master_weights=copies,
        gradient_casts=casts[copies * (batch - 1)],
        optimizer=optimizer,
        foreach=kernel == "foreach",
        fused=kernel == "fused",
        backend=backend,
        attention_kernel=attention,
        dropout=drops and not closed and draw(st.booleans()),
        norm_kernel=draw(st.sampled_from(["fused", "written_out"])),
        activation_kernel=draw(st.sampled_from(["fused", "fused" if closed else "written_out"])),
        rope_tables=draw(st.sampled_from(["layer", "model"])),
        dropout_in=draw(st.sampled_from(["model", "layers", "attention"])),
        rope_layout=draw(st.sampled_from(["token", "token" if closed else "head"])),
        embedding_scale=["none", "buffer"][0 if closed else length % 2],
        embeddings=["freed", "held"][length // 2 % 2],
        cache_growth=["in_place", "concatenated"][batch % 2],
        next_logits=["freed", "float32"][length % 2],
        projections=draw(
            st.sampled_from(["separate"] if closed else ["separate", "packed", "sliced"])
        ),
        gate_and_up=draw(st.sampled_from(["separate", "separate" if closed else "packed"])),
        expert_kernel=draw(st.sampled_from(["scattered", "scattered" if closed else "gathered"])),
        loss_dtype=draw(st.sampled_from(["logits", "float32"])),
        targets=draw(st.sampled_from(["given", "shifted"])),
        outputs=draw(st.sampled_from(["freed", "kept"])),
        recompute=draw(
            st.sampled_from(["none", "selective", "full", "full" if closed else "selective_op"])
        ),
    )


KERNELS = ["math", "flash", "efficient"]
OURS = {"norm_kernel": "fused", "rope_tables": "layer", "embeddings": "freed"}
"""Settings that have closed formulas in all layers; others have them in layers as Llama's."""


@st.composite
def decoders_with_known_peaks(draw) -> tuple[Decoder, RunConfig]:
    """A mixer and a feed-forward part in every layer, and a run with a closed formula."""
    a, run = draw(decoders_that_run(peaks=True, closed=True))
    there = {
        name: " ".join(word for word in getattr(a, name).split() if word != "none") or plain
        for name, plain in (("mixers", "attention"), ("mlps", "mlp"))
    }
    there["shared_gate"] = a.shared_gate and a.d_model > 1
    if draw(st.booleans()):
        run = run.model_copy(update=OURS)
    elif any(getattr(run, name) != word for name, word in OURS.items()):
        there |= {"norm_placement": "pre", "parallel": False, "embedding_norm": False}
        there["position"] = a.position if a.position == "rotary" else "none"
    return a.model_copy(update=there), run


@st.composite
def decoders_that_run(draw, peaks: bool = False, closed: bool = False) -> tuple[Decoder, RunConfig]:
    """A decoder and a run that programs know; `closed`: one with a closed formula of its peak."""
    a, run = draw(decoders(covered=True, peaks=peaks)), draw(runs(closed=closed))
    if a.position in MASKS:
        recompute = "none" if run.recompute == "selective" or a.position != "relative" else "full"
        run = run.model_copy(update={"attention_kernel": "math", "recompute": recompute})
    if run.recompute == "full":
        a = a.model_copy(update={"mlps": a.mlps.replace(" none", "")})
    if run.attention_kernel != "math":
        a = a.model_copy(update={"d_head": 8 * draw(st.integers(1, 2))})
    if "mla" in a.mixers and run.attention_kernel == "flash":
        run = run.model_copy(update={"attention_kernel": "math"})
    if "nope_attention" in a.mixers and (closed or peaks):
        run = run.model_copy(update={"rope_tables": "layer"})
    a, run = fitting(a, run)
    if closed and run.norm_kernel == "written_out_exact":
        run = run.model_copy(update={"norm_kernel": "fused"})
    if closed and run.activation_kernel == "fused_gate":
        run = run.model_copy(update={"activation_kernel": "fused"})
    if closed or run.targets == "shifted":
        pass
    elif run.foreach:
        n_token = run.batch * run.length
        n_chunk = next((n for n in range(2, n_token + 1) if n_token % n == 0), 1)
        run = run.model_copy(update={"loss_chunks": n_chunk})
    else:
        copies = run.loss_dtype == "float32" and run.dtype in HALF
        outputs = draw(st.sampled_from(["freed", "kept"])) if copies else "freed"
        run = run.model_copy(update={"loss_kernel": "in_place", "outputs": outputs})
    if "sliding_attention" in a.mixers and run.attention_kernel != "math":
        a = a.model_copy(update={"window": run.length + draw(st.integers(0, 2))})
    return a, run


def fitting(a: Decoder, run: RunConfig) -> tuple[Decoder, RunConfig]:
    """The decoder and the run with norms, RoPE and projections that formulas know together."""
    if "mla" in a.mixers:
        own = {"norm_kernel": "fused", "rope_tables": "layer"}
        run = run.model_copy(update=own)
    if run.rope_tables == "model":
        a = a.model_copy(update={"d_rotary": 0})
    if run.norm_kernel == "written_out" and a.norm_scale and a.qk_norm == "none" and a.tied:
        run = run.model_copy(update={"norm_kernel": "written_out_exact"})
    gathers = run.expert_kernel == "gathered"
    if run.gate_and_up == "packed" or gathers:
        fuses = not gathers and "moe" not in a.mlps and a.activation != "relu" and run.length % 2
        kernel = "fused_gate" if fuses else "fused"
        run = run.model_copy(update={"activation_kernel": kernel})
        a = a.model_copy(update={"gated": True})
    if gathers:
        bias = a.router_bias.replace("selection", "logit")
        a = a.model_copy(update={"router_bias": bias, "d_model": max(2, a.d_model)})
    if run.projections != "separate":
        equal = dict.fromkeys(["key_bias", "value_bias"], a.query_bias)
        without_rope = run.attention_kernel == "efficient" and a.position != "rotary"
        n_head = a.n_kv_head if without_rope else a.n_head
        norms = {"qk_norm": "none", "qk_norm_bias": False, "n_head": n_head}
        a = a.model_copy(update=equal | norms)
        run = run.model_copy(update={"length": max(2, run.length)})
    return a, run


@st.composite
def smallest_that_run(draw) -> tuple[EmbeddingLM | FeedForwardLM, RunConfig]:
    """A language model of words and a head, or with an MLP between, and a run of it."""
    flip = st.booleans()
    ends = {
        "n_vocab": draw(st.integers(1, 60)),
        "vocab_multiple": draw(st.integers(1, 8)),
        "d_model": draw(st.integers(1, 24)),
        "tied": draw(flip),
        "head_bias": draw(flip),
    }
    between = {
        "d_ff": draw(st.integers(1, 60)),
        "gated": draw(flip),
        "up_bias": draw(flip),
        "down_bias": draw(flip),
        "activation": draw(st.sampled_from(["gelu", "relu", "relu2", "silu"])),
    }
    model = FeedForwardLM(**ends, **between) if draw(flip) else EmbeddingLM(**ends)
    run = draw(runs())
    off = {
        "dropout": False,
        "recompute": "none",
        "gate_and_up": "separate",
        "expert_kernel": "scattered",
    }
    return model, run.model_copy(update=off)
