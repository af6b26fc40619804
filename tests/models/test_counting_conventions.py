"""Counting conventions: against numbers by hand, real modules, and torch's FLOP counter."""

import polars as pl
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import modelbudget as mb
from modelbudget.architecture.counting_conventions import BY_NAME, CONVENTIONS
from modelbudget.architecture.evaluators import polars_columns
from modelbudget.architecture.terms import Term, total
from modelbudget.huggingface.offline import transformers
from modelbudget.measurement.count import count
from modelbudget.modules.initialise import uninitialised

T = 1024
D, L, V, FF = 768, 12, 50257, 3072
LAYERS = 12 * (4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768)
NORMS = 12 * 2 * 2 * 768 + 2 * 768
GPT_2 = {  # GPT-2 124M, tied, 1,024 positions; 123.65M is what nanoGPT prints
    "total": 124_439_808,
    "without_input_embedding": 124_439_808 - 38_597_376,
    "without_positions": 123_653_376,
    "without_vocabulary": 124_439_808 - 38_597_376,
    "without_embeddings": 85_056_000,  # as the card of Pythia 160M has it, of the same layers
    "without_embeddings_and_norms": LAYERS,
    "kaplan": 84_934_656,
    "6n": 746_638_848,
    "6n_without_input_embedding": 6 * 85_842_432,
    "6n_without_embeddings": 510_336_000,
    "8n": 995_518_464,
    "deepseek_n1": 509_607_936,
    "deepseek_n2": 509_607_936 + 6 * 50257 * 768,
    "deepseek_m": 509_607_936 + 113_246_208,  # 12 · 12 · 768 · 1,024
    "palm": 746_638_848 + 113_246_208,
    "nanogpt": 741_920_256 + 113_246_208,
    "nanochat": 6 * 85_842_432 + 113_246_208,
    "olmo": 2 * 85_842_432 + 4 * 124_439_808 + 113_246_208,
    # Appendix F for a sequence of 1,024, line by line, over 1,024
    "chinchilla": 3 * (
        2 * T * V * D
        + 12 * (2 * 3 * T * D * D + 2 * T * T * D + 3 * 12 * T * T + 2 * T * T * D + 2 * T * D * D
                + 2 * T * (D * FF + D * FF))
        + 2 * T * D * V
    ) // T,
    "megatron": round(72 * L * D**2 * (1 + T / (6 * D) + V / (12 * L * D))),
    "megatron_recomputed": round(96 * L * D**2 * (1 + T / (6 * D) + V / (16 * L * D))),
}  # fmt: skip


def test_each_convention_by_hand():
    found = mb.model("gpt-2-124m").conventions({"length": T})
    assert GPT_2.keys() == BY_NAME.keys()
    assert found.values == GPT_2
    assert not found.missing
    *rows, executed = found.rows()
    assert [row["convention"] for row in rows] == list(BY_NAME)
    assert executed["value"] == found.executed


@pytest.mark.parametrize("name", ["gpt-2-124m", "pythia-70m", "olmo-2-7b", "chinchilla-a9-44m"])
def test_each_convention_on_a_real_module(name):
    model = mb.model(name)
    a = model.architecture
    with uninitialised(), torch.device("meta"):
        measured = {key: Term(one.parameters) for key, one in count(a.build()).items()}
    found = model.conventions({"length": 2048}).values
    assert {one.name: one.value(measured, a, 2048) for one in CONVENTIONS} == found


@pytest.mark.parametrize(
    ("name", "config", "kind", "convention"),
    [
        ("gpt-2-124m", {}, "gpt2", "without_embeddings"),
        ("pythia-70m", {"vocab_size": 50304, "hidden_size": 512, "intermediate_size": 2048,
                        "num_hidden_layers": 6, "num_attention_heads": 8},
         "gpt_neox", "without_input_embedding"),
    ],
)  # fmt: skip
def test_what_transformers_leaves_out(name, config, kind, convention):
    """Modules of class Embedding, positions among them; an untied head is none."""
    with torch.device("meta"):
        configuration = transformers.AutoConfig.for_model(kind, **config)
        model = transformers.AutoModelForCausalLM.from_config(configuration)
    found = mb.model(name).conventions({"length": T})
    assert model.num_parameters(exclude_embeddings=True) == found[convention]
    assert model.num_parameters() == found["total"]


SMALL = {"d_model": 32, "n_layer": 2, "n_head": 4, "d_ff": 128, "n_vocab": 97, "n_ctx": 64}


def test_torch_counts_what_megatron_does():
    """Without GQA and gate, and with d_ff = 4 · d_model, its formula is every product."""
    model = mb.model("decoder", **SMALL, tied=False, position="rotary")
    module = model.architecture.build()
    counter = FlopCounterMode(display=False)
    with counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        module(torch.zeros(3, 64, dtype=torch.long)).sum().backward()
    math = {"length": 64, "attention_kernel": "math"}  # FlashAttention computes scores again
    found = model.conventions(math)
    assert counter.get_total_flops() == 3 * 64 * found["megatron"]
    assert found.executed == found["megatron"]
    # A head's product stays, norms' scales do not: nanochat's convention has only those too many.
    assert found["nanochat"] - found["megatron"] == 6 * total(
        {k: v for k, v in model.architecture.parameters(model.architecture).items() if "norm" in k}
    )
    full = model.conventions(math | {"recompute": "full"})
    # torch ends a repeated forward pass with the last tensor it saves, before the product down.
    assert full["megatron_recomputed"] - full.executed == 2 * 2 * 128 * 32


def test_a_printed_table_that_is_not_reproduced():
    """Hoffmann et al. 2022, Table A4: 1.03, 1.10, 1.08, 1.04, 1.03, 0.99 (docs/conventions.md)."""
    shapes = [(10, 640, 10, 64), (20, 1024, 16, 64), (24, 1280, 10, 128), (26, 1792, 14, 128),
              (28, 2048, 16, 128), (40, 3584, 28, 128)]  # fmt: skip
    ratios = []
    for n_layer, d_model, n_head, d_head in shapes:
        sizes = {"n_layer": n_layer, "n_head": n_head, "d_head": d_head, "d_ff": 4 * d_model}
        found = mb.model("chinchilla-a9-44m", d_model=d_model, **sizes).conventions(
            {"length": 2048}
        )
        ratios.append(round(found["chinchilla"] / found["6n"], 2))
    assert ratios == [1.58, 1.32, 1.23, 1.14, 1.12, 1.03]


def test_a_grid_at_once():
    sizes = {"n_layer": [2, 3, 5], "n_vocab": [97, 1000, 5]}
    points = [
        mb.model("decoder", **SMALL | {"n_layer": n_layer, "n_vocab": n_vocab}).architecture
        for n_layer, n_vocab in zip(*sizes.values(), strict=True)
    ]
    fields = points[0].model_dump() | {name: pl.Series(values) for name, values in sizes.items()}
    grid = polars_columns.namespace(type(points[0]), fields)
    terms = type(points[0]).parameters(grid)
    for one in CONVENTIONS:
        by_row = [one.value(a.parameters(a), a, 64) for a in points]
        assert polars_columns.series(one.value(terms, grid, 64), 3).to_list() == by_row


def test_where_a_convention_says_nothing():
    found = mb.model("mamba-130m").conventions()
    assert found["total"] == 129_135_360
    assert set(found.missing) == {one.name for one in CONVENTIONS if one.fields}
    with pytest.raises(mb.InputError, match=r"Mamba 130M: kaplan: .* has no n_head"):
        found["kaplan"]
    with pytest.raises(mb.InputError, match=r"convention = 'totl': unknown.*total"):
        found["totl"]


def test_experts_that_a_token_does_not_use():
    found = mb.model("mixtral-8x7b").conventions()
    assert (found["total"], found["6n"]) == (46_702_792_704, 6 * 12_879_925_248)
