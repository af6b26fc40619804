"""Programs read with symbols: each row equals the run of the program with its numbers."""

import re
from itertools import product

import polars as pl
import pytest
import sympy
from helpers.catalogue import CATALOGUE
from helpers.readings import of_graph, of_symbols
from helpers.strategies import decoders_that_run
from helpers.tiers import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from modelbudget.architecture.arithmetic import highest
from modelbudget.architecture.evaluators import graph, intervals, polars_columns
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import of_model
from modelbudget.families.decoder import Decoder
from modelbudget.operations.part import NoProgramError
from modelbudget.predict import by_regime
from modelbudget.predict.by_program import quantities, terms_by_program
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.points_table import model_of
from modelbudget.symbolic_programs import moments
from modelbudget.symbolic_programs.regime import traced
from modelbudget.symbolic_programs.symbolic_sizes import Symbols, symbol

SIZES = {name for name in Decoder.numeric() if Decoder.model_fields[name].annotation is int}


def without_zeros(values) -> dict:
    return {name: {k: n for k, n in of.items() if n} for name, of in values.items()}


@st.composite
def larger(draw, a, run):
    """The same model with sizes that are multiples of its own, and no other number 0 or 1.

    But of one sequence or several, where a run may have any number of them.
    """
    times = st.integers(1, 4)
    of_heads = draw(times)
    kept = ("d_head", "d_rotary", "n_dense_layer", "n_layer")
    fields = {name: n * draw(times) if (n := getattr(a, name)) > 1 else n for name in SIZES}
    fields |= {"n_kv_head": a.n_kv_head * of_heads, "n_head": a.n_head * of_heads}
    fields |= {name: getattr(a, name) for name in kept}
    fields["n_ctx"] = 4 * a.n_ctx
    of_run = {name: getattr(run, name) for name in ("batch", "length")}
    of_run = {name: n * draw(times) if n > 1 else n for name, n in of_run.items()}
    if run.n_microbatch == run.loss_chunks == 1:
        of_run["batch"] = draw(st.sampled_from([1, 2 * run.batch, 3 * run.batch]))
    return a.model_copy(update=fields), run.model_copy(update=of_run)


@given(st.data())
@settings(max_examples=examples(12), deadline=None)
def test_a_regime_equals_runs_of_the_program_with_numbers(data):
    """In its example, and wherever its guards hold: only this sees a comparison without guard."""
    a, run = data.draw(decoders_that_run())
    use = data.draw(st.sampled_from(["training", "inference"]))
    regime = traced(lambda a, run: quantities(use, a, run), a, run, SIZES | {"batch", "length"})
    for example in [(a, run), *(data.draw(larger(a, run)) for _ in range(3))]:
        fields = dict(example[0]) | dict(example[1])
        holds = regime.holds(fields)
        assert holds or example != (a, run)
        if not holds:
            continue
        values = regime.read(fields)
        read = {q: {k: values.of(n) for k, n in of.items()} for q, of in regime.quantities.items()}
        if regime.missing is not None:
            with pytest.raises(NoProgramError, match=re.escape(regime.missing)):
                quantities(use, *example)
            continue
        expected = quantities(use, *example)
        assert without_zeros(read) == without_zeros(expected)


@pytest.mark.parametrize("quantity", ["peak_training_bytes", "flops_backward", "cache_bytes"])
def test_lengths_of_targets_are_rows_of_a_regime(quantity):
    """As is that of a source; a target of 0 has it, too."""
    a, run = named_architecture(CATALOGUE["t5-small"]), RunConfig(attention_kernel="efficient")
    lengths, targets = zip(*product((24, 64, 80), (0, 16, 24, 64, 320)), strict=True)
    rows = {"length": pl.Series(lengths), "target_length": pl.Series(targets)}
    by_row: dict[int, int] = {}
    for numbers, terms in by_regime.rows_by_program(
        type(a), quantity, {**dict(a), **dict(run), **rows}, 15
    ):
        values = polars_columns.series(of_model(quantity, terms), len(numbers))
        by_row |= dict(zip(numbers.tolist(), values.to_list(), strict=True))
    for i, (length, target) in enumerate(zip(lengths, targets, strict=True)):
        one = run.model_copy(update={"length": length, "target_length": target})
        assert by_row[i] == of_model(quantity, terms_by_program(quantity, a, one))


@pytest.mark.parametrize("data_rank", ["first", "last"])
def test_numbers_of_devices_are_rows_of_a_regime(data_rank):
    """Devices that have shards: each number of them was a regime, and a run with symbols."""
    a = named_architecture(CATALOGUE["llama-3-8b"])
    run = RunConfig(length=64, data_parallel=3, zero=3, data_rank=data_rank)
    rows = {"data_parallel": pl.Series(range(3, 33))}
    regimes = list(
        by_regime.rows_by_program(
            Decoder, "peak_training_bytes", {**dict(a), **dict(run), **rows}, 30
        )
    )
    assert max(len(numbers) for numbers, _ in regimes) > by_regime.FEW
    for numbers, terms in regimes[:1]:
        values = polars_columns.series(of_model("peak_training_bytes", terms), len(numbers))
        for row in (0, len(numbers) - 1):
            devices = {"data_parallel": rows["data_parallel"][int(numbers[row])]}
            expected = terms_by_program("peak_training_bytes", a, run.model_copy(update=devices))
            assert values[row] == of_model("peak_training_bytes", expected)


@pytest.mark.parametrize(("name", "kernel", "holds"), [("llama-3-8b", "flash", 1),
                                                       ("gpt-2-124m", "math", 0)])  # fmt: skip
def test_one_sequence_is_a_regime_of_its_own_only_where_it_copies_otherwise(name, kernel, holds):
    """A view of the heads of one sequence is contiguous. Only this sees runs in vain."""
    a = named_architecture(CATALOGUE[name])
    run = RunConfig(batch=3, length=64, dtype="bfloat16", attention_kernel=kernel)
    varying = {*Decoder.numeric(), "batch"}
    regime = traced(lambda a, run: quantities("inference", a, run), a, run, varying)
    alone = run.model_copy(update={"batch": 1})
    fields = dict(a) | dict(alone)
    assert regime.holds(fields) == holds
    if holds:
        peaks = regime.quantities["peak_inference_bytes"]
        values = regime.read(fields)
        expected = quantities("inference", a, alone)["peak_inference_bytes"]
        assert {phase: values.of(size) for phase, size in peaks.items()} == expected


def test_texts_of_chunks_are_two_regimes_and_not_one_for_each_remainder():
    """Only this sees a remainder that is a number: columns of lengths would take 64 runs."""
    a = Decoder(n_vocab=19, d_model=16, n_layer=2, n_head=1, n_kv_head=1, d_head=2, d_ff=24,
                position="none", mixers="gated_deltanet", n_linear_head=4, n_linear_key_head=2,
                d_linear_key=6, d_linear_value=10, d_linear_convolution=4)  # fmt: skip
    run = RunConfig(batch=2, length=1000, dtype="bfloat16")
    regime = traced(lambda a, run: quantities("inference", a, run), a, run, {"length"})
    for length in (1001, 2047):
        longer = run.model_copy(update={"length": length})
        fields = dict(a) | dict(longer)
        assert regime.holds(fields)
        values, expected = regime.read(fields), quantities("inference", a, longer)
        for quantity, of in regime.quantities.items():
            assert {name: values.of(n) for name, n in of.items()} == expected[quantity]
    assert not regime.holds(dict(a) | dict(run) | {"length": 1024})


@pytest.fixture
def rows():
    """Models whose attention has sinks, of which no closed formula gives the peak of training."""
    a = Decoder(n_vocab=100, n_ctx=64, d_model=64, n_layer=9, n_head=4, n_kv_head=2, d_head=8,
                d_ff=128, norm="rmsnorm", activation="silu", sinks=True)  # fmt: skip
    run = RunConfig(batch=2, length=8, dtype="bfloat16", attention_kernel="math")
    fields = {n: int(v) if isinstance(v, bool) else v for n, v in (dict(a) | dict(run)).items()}
    return type(a), fields | {
        "n_layer": pl.Series([3, 9, 20, 11] * 3),
        "d_model": pl.Series([2, 64, 65, 640, 31, 7] * 2),
        "batch": pl.Series([1, 2, 5] * 4),
    }


def test_rows_without_a_closed_formula_equal_single_models(rows, monkeypatch):
    family, fields = rows
    everywhere = pl.Series([True] * 12)
    monkeypatch.setattr(by_regime, "FEW", 0)
    by_regimes = by_regime.totals(family, "peak_training_bytes", fields, everywhere)
    monkeypatch.setattr(by_regime, "FEW", 12)
    monkeypatch.setattr(by_regime, "_regimes", lambda *_: [])
    one_by_one = by_regime.totals(family, "peak_training_bytes", fields, everywhere)
    assert by_regimes.to_list() == one_by_one.to_list()


def test_a_setting_without_a_program_has_no_rows(monkeypatch):
    a = named_architecture(CATALOGUE["big-lstm-cnn-input"])
    run = RunConfig(loss_kernel="fused_linear")
    fields = {n: int(v) if isinstance(v, bool) else v for n, v in (dict(a) | dict(run)).items()}
    fields["n_layer"] = pl.Series([2, 3, 24])
    monkeypatch.setattr(by_regime, "FEW", 0)
    total = by_regime.totals(type(a), "peak_training_bytes", fields, pl.Series([True] * 3))
    assert total.to_list() == [None] * 3


def test_rows_of_a_family_with_an_attribute_of_the_name_of_a_decoders_field(monkeypatch):
    """`mixers` of RWKV-5 is no pattern."""
    a = named_architecture(CATALOGUE["rwkv-5-0.4b"])
    run = RunConfig(length=8)
    fields = {n: int(v) if isinstance(v, bool) else v for n, v in (dict(a) | dict(run)).items()}
    fields["n_layer"] = pl.Series([2, 3, 24])
    monkeypatch.setattr(by_regime, "FEW", 0)
    total = by_regime.totals(type(a), "peak_training_bytes", fields, pl.Series([True] * 3))
    models = [a.model_copy(update={"n_layer": n}) for n in fields["n_layer"]]
    peaks = [quantities("training", model, run)["peak_training_bytes"] for model in models]
    assert total.to_list() == [max(of_model.values()) for of_model in peaks]


def test_rows_that_do_not_differ_have_one_value(rows, monkeypatch):
    """As along an axis of a grid that no field depends on."""
    family, fields = rows
    same = {n: v[1] if isinstance(v, pl.Series) else v for n, v in fields.items()}
    monkeypatch.setattr(by_regime, "FEW", 0)
    total = by_regime.totals(family, "peak_training_bytes", same, pl.Series([True] * 12))
    peaks = quantities("training", *model_of(family, same))["peak_training_bytes"]
    assert total.to_list() == [max(peaks.values())] * 12


def test_a_row_that_exceeds_64_bits_is_refused(rows, monkeypatch):
    """Columns would wrap; the bounds of the regime say that they may."""
    family, fields = rows
    monkeypatch.setattr(by_regime, "FEW", 0)
    huge = fields | {"d_model": pl.Series([64] * 11 + [2**52]), "n_layer": 9, "batch": 2}
    total = by_regime.totals(family, "parameter_bytes", huge, pl.Series([True] * 11 + [False]))
    assert total.null_count() == 1
    with pytest.raises(ValueError, match="more than 9,223,372,036,854,775,807"):
        by_regime.totals(family, "parameter_bytes", huge, pl.Series([True] * 12))


def test_a_regime_is_read_as_graph_as_mathematics_and_as_bounds():
    """The readings of formulas read it as well: a page's script, mathematics, intervals."""
    a = named_architecture(CATALOGUE["llama-3-8b"])
    run = RunConfig(batch=2, length=64, dtype="bfloat16", attention_kernel="flash")
    varying = {"d_model", "d_head", "n_kv_head", "n_layer", "length"}
    regime = traced(lambda a, run: quantities("inference", a, run), a, run, varying)
    numbers = dict(a) | dict(run) | {"d_model": 1000, "d_head": 96, "length": 100}
    expected = quantities("inference", *model_of(type(a), numbers))
    nodes = regime.read(numbers | {name: graph.field(name) for name in varying})
    bounds = regime.read(
        numbers | {n: intervals.Interval(numbers[n] // 2, numbers[n]) for n in varying}
    )
    of_sizes = {name: sympy.Symbol(name, integer=True) for name in varying}
    formulas = regime.read(numbers | of_sizes)
    for name, peak in regime.quantities["peak_inference_bytes"].items():
        value = expected["peak_inference_bytes"][name]
        sizes_alone = {n: numbers[n] for n in varying}
        assert of_symbols({name: formulas.of(peak)}, sizes_alone) == {name: value}
        assert of_graph(nodes.of(peak), numbers) == value
        assert intervals.least(bounds.of(peak)) <= value <= intervals.most(bounds.of(peak))


def test_only_moments_that_may_be_the_largest_are_kept():
    Symbols.active = Symbols()
    x, y = symbol("x", 3), symbol("y", 5)
    assert [size.terms for size in highest(x * y, x, y, x + y, 3).kept] == [(x * y).terms]
    assert len(highest(x * x, y * y, x).kept) == 2


def test_what_is_freed_while_live_bytes_are_added_up_is_not_among_them(monkeypatch):
    """Python may collect a tensor of the same tape at any time, which is rare in a test."""
    Symbols.active = Symbols()
    x = symbol("x", 3)
    changes = [(2 * x, 1), (x, 1), (x, -1)]
    places = moments._places

    def freeing(monomials):
        changes.append((2 * x, -1))
        changes.append((5 * x, 1))
        return places(monomials)

    monkeypatch.setattr(moments, "_places", freeing)
    sums, monomials = moments._sums(changes)
    assert monomials == list(x.terms)
    assert sums.tolist() == [[0], [2], [3], [2]]
