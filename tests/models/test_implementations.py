"""`implementation: transformers` against traces of the classes: saved bytes and peaks; and our
modules with the same settings against the formulas. All at difference 0.
"""

from collections.abc import Iterator

import pytest
import torch
from helpers.tiers import product_by_tier
from helpers.training import measured, predicted, without_zeros

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Term, Terms, of_model, total
from modelbudget.catalogue.implementations import implementations
from modelbudget.catalogue.named_models import Base
from modelbudget.families.decoder import Decoder
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.read_config import fields_of, unknown_keys
from modelbudget.measurement.build import build
from modelbudget.measurement.measured import Values
from modelbudget.measurement.one_model import look
from modelbudget.measurement.reference.class_trace import trace_class
from modelbudget.measurement.step.module_settings import arrange
from modelbudget.modules.initialise import initialise
from modelbudget.predict.formula import formula
from modelbudget.sweeps.compared import not_compared
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.quantity_names import OF_INFERENCE

COMMON = {
    "vocab_size": 500, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip
SMALL = {
    "GPT2LMHeadModel": {"vocab_size": 500, "n_embd": 64, "n_layer": 3, "n_head": 4}
    | {"n_positions": 400},
    "Qwen3ForCausalLM": COMMON | {"head_dim": 16},
    "GemmaForCausalLM": COMMON | {"head_dim": 16},
    "Gemma2ForCausalLM": COMMON | {"head_dim": 16, "sliding_window": 20},
    "MixtralForCausalLM": COMMON
    | {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
    },
}
CLASSES = list(implementations()["transformers"].classes)
ONLY_EAGER = {"Gemma2ForCausalLM"}
WITH_SDPA = [kind for kind in CLASSES if kind not in ONLY_EAGER]
KERNELS = [
    ("float32", "efficient"),
    ("float32", "math"),
    ("bfloat16", "flash"),
    ("bfloat16", "math"),
]
ON_AND_OFF = [(True, "none"), (False, "full"), (True, "full")]
QUANTITIES = {"activation_bytes", "peak_training_bytes"}


def architecture_of(kind: str, config: dict) -> Decoder:
    fields = fields_of(kind, {"model_type": translations()[kind].model_type} | config)
    return named_architecture(Base(kind, kind, Decoder, fields, {}))


def run_of(kind: str, config: dict | None = None, **settings) -> RunConfig:
    """A run of a class, with its own attention if it has no other."""
    own = implementations()["transformers"].of_class(kind, config or {})
    kept = {"attention_kernel": own["attention_kernel"]} if kind in ONLY_EAGER else {}
    return RunConfig(**own | settings | kept)


def compare(kind: str, run: RunConfig, **config) -> tuple[Decoder, Values]:
    """Return the architecture, and what was traced."""
    config = SMALL.get(kind, COMMON) | config
    a = architecture_of(kind, config)
    traced = trace_class(kind, config, run, QUANTITIES)
    assert not traced.missing
    assert traced.attention == {"written_out": "eager"}.get(run.attention_kernel, "sdpa")
    saved = terms_of("activation_bytes", a, run)
    assert total(saved) == sum(traced.values["activation_bytes"].values())
    peaks = {name: term.total for name, term in terms_of("peak_training_bytes", a, run).items()}
    assert peaks == traced.values["peak_training_bytes"]
    return a, traced.values


def terms_of(quantity: str, a: Decoder, run: RunConfig) -> Terms:
    """Return the terms of a formula, or of a program where there is none."""
    terms, has_formula = formula(Decoder, quantity, a, run)
    assert has_formula
    return terms


ANY = {
    "sliding_window": [4096, 30], "max_window_layers": [1], "router_aux_loss_coef": [0.1],
    "hidden_activation": ["gelu_new"], "hidden_act": ["gelu_new"], "query_pre_attn_scalar": [100],
}  # fmt: skip
"""Values of keys that were compared with any."""


ROPE = {
    "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4,
    "original_max_position_embeddings": 64, "long_factor": [1.0] * 8, "short_factor": [1.0] * 8,
}  # fmt: skip


def declared(kind: str) -> Iterator[dict]:
    """Yield configs in which each value that is declared as compared occurs once or more."""
    implementation = implementations()["transformers"]
    assert implementation.compared
    keys = implementation.compared.keys | implementation.classes[kind].keys
    values = {key: of or ANY[key] for key, of in keys.items()}
    for i in range(max(map(len, values.values()))):
        config = {key: of[i % len(of)] for key, of in values.items()}
        if config["layer_types"] is not None:
            config["layer_types"] = [config["layer_types"]] * 2
        rope = config["rope_parameters.rope_type"]
        config = {k: value for k, value in config.items() if not k.startswith("rope_")}
        if kind != "GPT2LMHeadModel":
            config["rope_parameters"] = ROPE | {"rope_type": rope}
        yield config


@pytest.mark.parametrize("kind", CLASSES)
def test_what_is_declared_as_compared_has_no_difference(kind):
    """Each value of each key, both `foreach`, each optimizer: every quantity that is listed."""
    compared = implementations()["transformers"].compared
    assert compared
    for i, config in enumerate(declared(kind)):
        depth = "n_layer" if kind == "GPT2LMHeadModel" else "num_hidden_layers"
        config = SMALL.get(kind, COMMON) | {depth: 2} | config
        unread = unknown_keys(kind, config)
        a = architecture_of(kind, {k: v for k, v in config.items() if k not in unread})
        # Its frequencies depend on the tokens' places, which have no values on meta.
        dynamic = "dynamic" in str(config)
        precision = ({"backend": "cpu"}, {"dtype": "float16"}, {"dtype": "bfloat16"})[
            0 if dynamic else i % 3
        ]
        run = run_of(
            kind, config, batch=2, length=24, attention_kernel="math", foreach=i % 2 == 0,
            n_microbatch=1 + i % 2,
            optimizer=("adamw", "adamw", "momentum", "sgd")[i % 4], **precision,
            master_weights="dtype" in precision and i % 4 == 1,
        )  # fmt: skip
        quantities = {
            q
            for q in compared.quantities
            if not not_compared(q, kind, config, a, run) and formula(Decoder, q, a, run)[1]
        }
        assert {"activation_bytes", "flops_forward", "gradient_bytes"} <= quantities
        traced = trace_class(kind, config, run, quantities, "cpu" if dynamic else "meta")
        assert not traced.missing
        for quantity in quantities:
            terms, _ = formula(Decoder, quantity, a, run)
            assert of_model(quantity, terms) == of_model(
                quantity, {name: Term(value) for name, value in traced.values[quantity].items()}
            ), (quantity, config)


def test_a_key_that_the_class_does_not_read_changes_nothing():
    """Files of other programs have such keys; what all classes share reads two that Llama's code
    does not mention."""
    kind, quantity = "LlamaForCausalLM", "activation_bytes"
    keys = {"seed": 1, "num_beam_groups": 1, "use_sliding_window": True, "lora": {"r": 8}}
    run = run_of(kind, COMMON, length=12, attention_kernel="math")
    a = architecture_of(kind, COMMON)
    assert not not_compared(quantity, kind, COMMON | keys, a, run)
    plain, traced = (
        trace_class(kind, config, run, {quantity}) for config in (COMMON, COMMON | keys)
    )
    assert traced.values == plain.values
    for key, value in {"sliding_window": 4, "attention_chunk_size": 4}.items():
        assert f"{key} = 4: not compared" in not_compared(
            quantity, kind, COMMON | {key: value}, a, run
        )


@pytest.mark.parametrize("length", [4, 12])
@pytest.mark.parametrize("kind", ["MistralForCausalLM", "Gemma2ForCausalLM", "Phi3ForCausalLM"])
def test_a_token_attends_those_of_a_window(kind, length):
    config = SMALL.get(kind, COMMON) | {"sliding_window": 6}
    run = run_of(kind, config, length=length, attention_kernel="math")
    a = architecture_of(kind, config)
    assert not not_compared("flops_decode", kind, config, a, run)
    traced = trace_class(kind, config, run, {"flops_decode"}).values["flops_decode"]
    terms, _ = formula(Decoder, "flops_decode", a, run)
    assert total(terms) == sum(traced.values())


@pytest.mark.parametrize("autocast", ["none", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("GPT2LMHeadModel", {"activation_function": "gelu"}),
        ("GPT2LMHeadModel", {"activation_function": "gelu_fast"}),
        ("LlamaForCausalLM", {"hidden_act": "gelu_new"}),
        ("MistralForCausalLM", {"hidden_act": "gelu_fast"}),
        ("Phi3ForCausalLM", {"hidden_act": "gelu_new"}),
        ("Gemma2ForCausalLM", {"hidden_activation": "gelu_fast"}),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": None}),
        ("Gemma2ForCausalLM", {"final_logit_softcapping": None}),
    ],
)
def test_values_of_keys_choose_settings(kind, keys, autocast):
    """Predicted as traced, and as measured of our module with these settings."""
    config = SMALL.get(kind, COMMON) | keys
    dtype = "bfloat16" if autocast == "none" else "float32"
    run = run_of(
        kind, config, batch=3, length=24, dtype=dtype, autocast=autocast,
        attention_kernel="math", foreach=True,
    )  # fmt: skip
    settings = implementations()["transformers"]
    assert settings.of_class(kind, config) != settings.of_class(kind)
    a = architecture_of(kind, config)
    traced, of_ours = trace_class(kind, config, run, QUANTITIES).values, measured(a, run)
    for quantity in QUANTITIES:
        assert not not_compared(quantity, kind, config, a, run)
        terms, has_formula = formula(Decoder, quantity, a, run)
        assert has_formula
        values = without_zeros({name: term.total for name, term in terms.items()})
        assert values == without_zeros(of_ours[quantity])
        of_class = {name: Term(value) for name, value in traced[quantity].items()}
        assert of_model(quantity, terms) == of_model(quantity, of_class)


@pytest.mark.parametrize(
    ("kind", "of_kernel", "batch"), product_by_tier([*CLASSES], KERNELS, [1, 3])
)
def test_a_class_needs_what_is_predicted(kind, of_kernel, batch):
    dtype, kernel = of_kernel
    run = run_of(
        kind, batch=batch, length=48, dtype=dtype, attention_kernel=kernel, foreach=True
    )  # fmt: skip
    compare(kind, run)


IN_INFERENCE = [
    kind
    for kind, of_class in implementations()["transformers"].classes.items()
    if kind not in ONLY_EAGER and "peak_inference_bytes" not in of_class.without
]


@pytest.mark.parametrize(
    ("kind", "of_kernel", "batch", "adapter"),
    product_by_tier(IN_INFERENCE, KERNELS, [1, 3], ["none", "lora"]),
)
def test_a_class_generates_with_what_is_predicted(kind, of_kernel, batch, adapter):
    """Prefill and decode of so many layers that few stand for all, with the fused kernels, too."""
    dtype, kernel = of_kernel
    run = run_of(
        kind, batch=batch, length=29, dtype=dtype, attention_kernel=kernel, adapter=adapter
    )
    config = SMALL.get(kind, COMMON) | {"num_hidden_layers": 7}
    a = architecture_of(kind, config)
    assert not not_compared("peak_inference_bytes", kind, config, a, run)
    traced = trace_class(kind, config, run, OF_INFERENCE).values
    for quantity in OF_INFERENCE & traced.keys():
        terms = {name: term.total for name, term in terms_of(quantity, a, run).items()}
        if quantity == "peak_inference_bytes":
            assert traced[quantity] == terms | {"setup": traced[quantity]["setup"]}
        else:
            assert sum(traced[quantity].values()) == sum(terms.values())


@pytest.mark.parametrize(
    ("kind", "length"),
    [*(("MistralForCausalLM", n) for n in (1, 5, 6, 7, 20)), ("Phi3ForCausalLM", 20)],
)
def test_a_cache_of_a_window_grows_as_that_of_the_class(kind, length):
    """It has views of the whole prompt, and the window as a tensor in each layer."""
    config = SMALL.get(kind, COMMON) | {"sliding_window": 6}
    a, run = architecture_of(kind, config), run_of(kind, length=length)
    assert not not_compared("cache_bytes", kind, config, a, run)
    traced = trace_class(kind, config, run, {"cache_bytes"}).values["cache_bytes"]
    assert sum(traced.values()) == total(terms_of("cache_bytes", a, run))


CHANGED = [(True, "none"), (False, "full"), (True, "full")]


@pytest.mark.parametrize(
    ("kind", "dtype", "changed"), product_by_tier([*CLASSES], ["float32", "bfloat16"], CHANGED)
)
def test_with_dropout_and_checkpointing(kind, dtype, changed):
    dropout, recompute = changed
    kernel = {"float32": "efficient", "bfloat16": "flash"}[dtype]
    run = run_of(
        kind, batch=2, length=40, dtype=dtype, attention_kernel=kernel, dropout=dropout,
        recompute=recompute, foreach=True,
    )  # fmt: skip
    compare(kind, run)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    ("vocab_size", "batch", "length"), [(20, 4, 64), (5000, 1, 8), (8, 2, 100)]
)
def test_where_the_peak_is_elsewhere(kind, vocab_size, batch, length):
    """In the layers, in the gradients of the embedding, in the loss."""
    run = run_of(kind, batch=batch, length=length, dtype="bfloat16", foreach=True)
    compare(kind, run, vocab_size=vocab_size)


@pytest.mark.parametrize(
    "kind", ["GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM", "GemmaForCausalLM"]
)
@pytest.mark.parametrize(
    ("dtype", "batch", "dropout", "recompute", "n_kv_head"),
    [
        ("float32", 1, False, "none", 2),
        ("float32", 3, True, "full", 4),
        ("bfloat16", 3, True, "none", 4),
        ("bfloat16", 3, False, "full", 2),
    ],
)
def test_eager_attention(kind, dtype, batch, dropout, recompute, n_kv_head):
    """Chosen by the run, of a class that has other attention, too."""
    run = run_of(
        kind, batch=batch, length=32, dtype=dtype, attention_kernel="written_out",
        dropout=dropout, recompute=recompute, foreach=True,
    )  # fmt: skip
    heads = {} if kind == "GPT2LMHeadModel" else {"num_key_value_heads": n_kv_head}
    a, traced = compare(kind, run, **heads, vocab_size=20)
    if kind == "GPT2LMHeadModel":  # checkpointing saves its mask, and that of our module
        found, quantities = measured(a, run), ("activation_bytes", "peak_training_bytes")
        assert found["peak_training_bytes"] == traced["peak_training_bytes"]
        for quantity, values in predicted(a, run, quantities).items():
            assert without_zeros(values) == found[quantity]


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_our_modules_have_eager_attention_of_windows_with_caps(dtype, recompute):
    a = architecture_of("Gemma2ForCausalLM", SMALL["Gemma2ForCausalLM"] | {"vocab_size": 20})
    run = run_of(
        "Gemma2ForCausalLM", batch=3, length=32, dtype=dtype, recompute=recompute, foreach=True
    )
    found, quantities = measured(a, run), ("activation_bytes", "peak_training_bytes")
    for quantity, values in predicted(a, run, quantities).items():
        assert without_zeros(values) == without_zeros(found[quantity])


@pytest.mark.parametrize(
    ("n_layer", "dtype", "kernel"),
    [(1, "bfloat16", "flash"), (2, "bfloat16", "math"), (1, "float32", "math")],
)
@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "GemmaForCausalLM", "Phi3ForCausalLM"])
def test_where_the_peak_is_in_attention_of_the_forward_pass(kind, n_layer, dtype, kernel):
    """Wide heads: the class still holds the embedding, which in half precision nothing saves."""
    run = run_of(
        kind, batch=2, length=64, dtype=dtype, attention_kernel=kernel, foreach=True
    )  # fmt: skip
    compare(kind, run, head_dim=256, vocab_size=20, num_hidden_layers=n_layer)


@pytest.mark.parametrize("kind", CLASSES)
def test_our_modules_with_the_same_settings_need_the_same(kind):
    a = architecture_of(kind, SMALL.get(kind, COMMON))
    run = run_of(kind, batch=3, length=24, dtype="bfloat16", foreach=True)
    found = measured(a, run)
    for quantity in QUANTITIES:
        terms = terms_of(quantity, a, run)
        assert {n: t.total for n, t in terms.items() if t.total} == {
            n: value for n, value in found[quantity].items() if value
        }


@pytest.mark.parametrize("n_vocab", [3, 500])
@pytest.mark.parametrize("kind", ["Phi3ForCausalLM", "MixtralForCausalLM"])
def test_one_tensor_at_a_time_packed_matrices_come_in_the_order_of_the_class(kind, n_vocab):
    """AdamW holds a temporary tensor of the matrix before."""
    run = run_of(kind, batch=1, length=8, dtype="bfloat16", foreach=False)
    a, traced = compare(kind, run, vocab_size=n_vocab)
    assert measured(a, run)["peak_training_bytes"] == traced["peak_training_bytes"]


def test_our_modules_compute_the_same_with_other_settings():
    """One matrix for several projections, slices of its result, shared tables of RoPE."""
    a = architecture_of("Phi3ForCausalLM", COMMON)
    model = build(a, "cpu", "float32")
    initialise(model)
    tokens = torch.arange(24).view(2, 12)
    before = model(tokens)
    arrange(model, run_of("Phi3ForCausalLM"))
    torch.testing.assert_close(model(tokens), before)


def test_a_model_without_attention_has_no_tables_of_rope():
    config = {"mixers": "channel_rnn", "d_hidden": 4}
    a = architecture_of("LlamaForCausalLM", COMMON).model_copy(update=config)
    run = RunConfig(length=8, rope_tables="model")
    expected = predicted(a, run, ["activation_bytes"])["activation_bytes"]
    found = measured(a, run, quantities=("activation_bytes",))["activation_bytes"]
    assert sum(expected.values()) == sum(found.values())


@pytest.mark.parametrize("quantities", [("activation_bytes",), ("peak_inference_bytes",)])
@pytest.mark.parametrize("kind", ["GemmaForCausalLM", "LlamaForCausalLM"])
def test_a_sweep_measures_what_is_predicted(kind, quantities):
    """Counted first and arranged for its run before its trace begins, training or not."""
    a = architecture_of(kind, COMMON)
    run = run_of(kind, batch=2, length=24, dtype="bfloat16", foreach=True)
    wanted, missing = {*quantities, "peak_training_bytes"}, {}
    _, found, _ = look(build(a, "meta", run.dtype), run, wanted, missing)
    assert not missing
    for quantity in wanted:
        expected = without_zeros(predicted(a, run, [quantity])[quantity])
        assert {n: v for n, v in found[quantity].items() if v and n != "setup"} == expected


OF_AUTOCAST = [
    ("flash", False, 500), ("efficient", True, 100), ("math", True, 500), ("math", False, 20)
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "settings", "recompute"),
    product_by_tier([*WITH_SDPA], OF_AUTOCAST, ["none", "full"]),
)
def test_autocast_needs_what_is_predicted(kind, settings, recompute):
    """The peak is in the loss, in the forward pass, or in the layers; of class and module alike."""
    kernel, dropout, vocab_size = settings
    run = run_of(
        kind, batch=3, length=48, autocast="bfloat16", attention_kernel=kernel, dropout=dropout,
        recompute=recompute, foreach=True,
    )  # fmt: skip
    a, traced = compare(kind, run, vocab_size=vocab_size)
    assert measured(a, run)["peak_training_bytes"] == traced["peak_training_bytes"]


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("vocab_size", "length"), [(500, 48), (20, 17)])
@pytest.mark.parametrize(
    "kind", ["GPT2LMHeadModel", "Gemma2ForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM"]
)
def test_autocast_of_eager_attention(kind, vocab_size, length, recompute):
    """Scores meet a float32 mask; caps and norms of outputs are in bfloat16; in the module, too."""
    run = run_of(
        kind, batch=3, length=length, autocast="bfloat16", attention_kernel="written_out",
        recompute=recompute, foreach=True,
    )  # fmt: skip
    a, traced = compare(kind, run, vocab_size=vocab_size)
    assert measured(a, run)["peak_training_bytes"] == traced["peak_training_bytes"]


def test_autocast_copies_the_repeats_of_one_key():
    """Of a single sequence they would be a view."""
    run = run_of(
        "LlamaForCausalLM", length=8, autocast="bfloat16", attention_kernel="written_out"
    )  # fmt: skip
    a, traced = compare("LlamaForCausalLM", run, num_key_value_heads=1)
    saved = predicted(a, run)["activation_bytes"]
    assert sum(saved.values()) == sum(traced["activation_bytes"].values())


def test_casts_of_many_layers_may_need_more_than_backward():
    """The peak is then in the forward pass of the last layer."""
    narrow = {
        "vocab_size": 2, "hidden_size": 16, "num_hidden_layers": 24, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 40,
    }  # fmt: skip
    a = architecture_of("LlamaForCausalLM", COMMON | narrow)
    settings = {"attention_kernel": "flash", "autocast": "bfloat16", "recompute": "full"}
    run = run_of("LlamaForCausalLM", length=136, **settings)
    peaks = predicted(a, run, ["peak_training_bytes"])
    assert peaks["peak_training_bytes"] == measured(a, run)["peak_training_bytes"]
