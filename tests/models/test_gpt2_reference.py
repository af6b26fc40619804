"""Hugging Face's GPT-2 as a reference: the ledger of its modules, and untying its head."""

import polars as pl
import pytest

from modelbudget.compare.gpt2_ledger import ledger
from modelbudget.compare.untied_head import surgery
from modelbudget.sweeps.derive import named_architecture


@pytest.fixture(scope="module")
def gpt2(catalogue):
    return named_architecture(catalogue["gpt-2-124m"])


def test_ledger_of_gpt2(gpt2):
    table = ledger("GPT-2 124M", gpt2, "meta")
    assert table["agrees"].all()
    each = dict(table.select("module", "each_true").iter_rows())
    assert each["transformer.wte"] == 38_597_376  # 50,257 × 768
    assert each["transformer.wpe"] == 786_432  # 1,024 × 768
    assert each["transformer.h.*.ln_1"] == each["transformer.h.*.ln_2"] == 1_536  # 2 × 768
    assert each["transformer.ln_f"] == 1_536
    assert each["transformer.h.*.attn"] == 2_362_368
    assert each["transformer.h.*.attn.c_attn"] == 1_771_776  # 3 × (768² + 768)
    assert each["transformer.h.*.attn.c_proj"] == 590_592  # 768² + 768
    assert each["transformer.h.*.mlp"] == 4_722_432
    assert each["transformer.h.*.mlp.c_fc"] == 2_362_368  # 3,072 × (768 + 1)
    assert each["transformer.h.*.mlp.c_proj"] == 2_360_064  # 768 × (3,072 + 1)
    assert each["transformer.h.*.mlp.act"] == each["transformer.h.*.mlp.dropout"] == 0
    assert each["total"] == 124_439_808  # KerasHub's preset
    assert table.filter(pl.col("module") == "lm_head")["shared_with"].item() == "transformer.wte"


@pytest.mark.parametrize(  # KerasHub's presets
    ("name", "count"),
    [("gpt-2-355m", 354_823_168), ("gpt-2-774m", 774_030_080), ("gpt-2-1558m", 1_557_611_200)],
)
def test_ledger_of_the_larger_sizes(catalogue, name, count):
    table = ledger(name, named_architecture(catalogue[name]), "meta")
    assert table["agrees"].all()
    assert table.filter(pl.col("module") == "total")["true"].item() == count


def test_ledger_shows_a_wrong_formula(gpt2):
    wider = gpt2.model_copy(update={"up_bias": False})
    table = ledger("wrong", wider, "meta")
    wrong = table.filter(~pl.col("agrees"))["module"].to_list()
    assert wrong == [
        "transformer.h.*",
        "transformer.h.*.mlp",
        "transformer.h.*.mlp.c_fc",
        "total",
    ]


def test_surgery_cuts_and_sews_the_tie(gpt2):
    table = surgery(gpt2)  # untied, the head has 50,257 × 768 more
    assert table["agrees"].all()
    for device in ("cpu", "meta"):
        steps = table.filter(pl.col("device") == device)
        assert steps["parameters"].to_list() == [124_439_808, 163_037_184, 124_439_808]
        assert steps["tied"].to_list() == [True, False, True]
        assert steps["head_storage"].to_list() == ["A", "B", "A"]
    # Comparing data_ptr is right on real tensors and wrong on meta.
    wrong = table.filter(pl.col("tied") != pl.col("data_ptr_says_tied"))
    assert wrong.select("device", "step").rows() == [("meta", 2)]
