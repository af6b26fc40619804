"""One formula in all readings: integers, Polars columns, bounds, SymPy, a graph."""

import re

import pytest
import sympy
from helpers.readings import (
    as_bounds,
    as_columns,
    as_integers,
    as_nodes,
    as_symbols,
    in_first_row,
    of_graph,
    of_symbols,
    sizes,
    two_rows,
    words,
)
from helpers.strategies import architectures, decoders_that_run
from helpers.tiers import examples
from helpers.training import without_zeros
from hypothesis import given, settings

from modelbudget.architecture.evaluators import graph, intervals, symbols
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Term, total
from modelbudget.families.decoder import Decoder
from modelbudget.predict.predict import predict
from modelbudget.sweeps.derive import named_architecture


@given(architectures)
@settings(max_examples=examples(60))
def test_columns_and_symbols_equal_integers(architecture):
    expected = as_integers(architecture)
    assert as_columns(architecture) == expected
    assert as_symbols(architecture) == expected


@given(architectures)
@settings(max_examples=examples(60))
def test_bounds_hold(architecture):
    """The number itself, and that of each number's double, are within; and what cannot fit 64
    bits is known.
    """
    family = type(architecture)
    expected = as_integers(architecture)
    found = as_bounds(family.parameters, architecture)
    assert expected.keys() <= found.keys()
    for name, bounds in found.items():
        low, high = intervals.most(-bounds), intervals.most(bounds)
        assert -low <= expected.get(name, 0) <= high
        assert intervals.fits(bounds)
        assert not intervals.fits(bounds * 2**63 + 2**63)


@given(architectures)
@settings(max_examples=examples(25))
def test_a_graph_equals_integers(architecture):
    assert as_nodes(architecture) == sum(as_integers(architecture).values())


def test_a_graph_is_exact_for_palm_540b(catalogue):
    assert as_nodes(named_architecture(catalogue["palm-540b"])) == 540_356_474_880


def test_a_formula_is_drawn_as_it_is_meant():
    layers, dense = (sympy.Symbol(name, positive=True) for name in ("n_layer", "n_dense"))
    term = Term(sympy.Symbol("d_ff"), layers - dense)
    drawn = re.sub(
        r"<[^>]+>", "", symbols.to_mathml(term, {"n_layer": 61, "n_dense": 3, "d_ff": 7})
    )
    assert drawn == "(61-3)×7"


OF_RUNS = (
    "gradient_bytes", "optimizer_bytes", "activation_bytes", "flops_forward", "flops_backward",
    "cache_bytes", "flops_decode", "peak_training_bytes",
)  # fmt: skip


PEAK = "peak_training_bytes"  # the largest of hundreds of sums: seconds with switches as symbols


def runs_in_symbols(a, run, quantities, fixed=lambda *_: {}) -> dict[str, dict[str, int]]:
    namespaces = [
        symbols.namespace(type(record), words(record), fixed(type(record), sizes(record)))
        for record in (a, run)
    ]
    numbers = sizes(a) | sizes(run)
    return {
        quantity: without_zeros(
            of_symbols(
                {name: term.total for name, term in getattr(a, quantity)(*namespaces).items()},
                numbers,
            )
        )
        for quantity in quantities
    }


@given(decoders_that_run(closed=True))
@settings(max_examples=examples(20))
def test_formulas_of_runs_are_the_same_in_all_readings(model):
    a, run = model
    expected = {
        quantity: {name: term.total for name, term in getattr(a, quantity)(a, run).items()}
        for quantity in OF_RUNS
        if a.has_formula_for(quantity, a, run)
    }
    drawn = expected.keys() - {PEAK}
    assert runs_in_symbols(a, run, drawn) == {
        quantity: without_zeros(expected[quantity]) for quantity in drawn
    }
    table = predict(two_rows(a, run), list(expected))
    for quantity, values in expected.items():
        assert in_first_row(table, quantity) == {n: v for n, v in values.items() if v}, quantity
        found = as_bounds(getattr(a, quantity), a, run)
        assert values.keys() <= found.keys()
        for name, bounds in found.items():
            value = values.get(name, 0)
            assert -intervals.most(-bounds) <= value <= intervals.most(bounds), quantity
    namespaces = [graph.namespace(type(record), words(record)) for record in (a, run)]
    # Of a kernel that an optimizer has not, no step is known.
    vars(namespaces[1]).update({name: 0 for name in ("foreach", "fused") if not getattr(run, name)})
    for quantity in expected:
        formula = total(getattr(a, quantity)(*namespaces))
        if not isinstance(formula, int):
            found = of_graph(formula, sizes(a) | sizes(run))
            assert found == sum(expected[quantity].values()), quantity


SIZES = {"n_vocab": 11, "d_model": 8, "n_head": 2, "d_head": 8, "d_ff": 16, "n_ctx": 8}
SIZES |= {"position": "rotary", "norm": "rmsnorm"}
EXPERTS = {"mlps": "moe", "n_expert": 2, "n_expert_per_token": 1, "d_expert": 3}
LATENTS = {"mixers": "mla", "kv_lora_rank": 4, "d_nope": 6, "d_rope": 2, "d_value": 6}
PEAKS = {
    "flash": (EXPERTS | {"n_layer": 2, "n_kv_head": 1}, {"attention_kernel": "flash"}),
    "window": (
        {"n_layer": 5, "mixers": "sliding_attention", "window": 3},
        {"recompute": "selective"},
    ),
    "latents": (LATENTS | {"n_layer": 2, "q_lora_rank": 5}, {"attention_kernel": "efficient"}),
}


@pytest.mark.parametrize(("fields", "settings"), PEAKS.values(), ids=PEAKS)
def test_a_peak_is_the_same_in_symbols(fields, settings):
    a = Decoder(**SIZES | {"n_kv_head": 2} | fields)
    run = RunConfig(batch=2, length=4, dtype="bfloat16", **settings)
    peaks = {phase: term.total for phase, term in a.peak_training_bytes(a, run).items()}
    assert runs_in_symbols(a, run, [PEAK], symbols.settled) == {PEAK: peaks}
