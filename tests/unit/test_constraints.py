"""One list of constraints, read by records, by columns and by Vega: all reject the same models."""

import html
import itertools
import re
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import vl_convert
from helpers.other_families import SHAPES, architectures
from helpers.strategies import decoders, hybrids, runs
from helpers.tiers import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import modelbudget as mb
from modelbudget.architecture.constraint import Constraint, first_mistake
from modelbudget.architecture.evaluators import vega_constraints
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.catalogue.named_models import Base
from modelbudget.common.errors import InputError
from modelbudget.families import families
from modelbudget.families.decoder import Decoder
from modelbudget.predict.grid import Grid
from modelbudget.sweeps.check_quantities import quantity_constraints
from modelbudget.sweeps.sweep_file import Sweep
from modelbudget.sweeps.sweep_mistakes import Mistakes

QUANTITIES = ("gradient_bytes",)
PATTERNS = {
    "mixers": [
        "attention",
        "sliding_attention",
        "mla sliding_attention",
        "channel_rnn",
        "none",
        "none attention",
    ],
    "mlps": ["mlp", "moe", "none", "none mlp", "mlp moe none"],
}


def choices(field) -> list:
    """Values of a field, legal by themselves."""
    if field.annotation is bool:
        return [False, True]
    least = min(getattr(limit, "ge", 1) for limit in field.metadata or [None])
    most = min(getattr(limit, "le", 264) for limit in field.metadata or [None])
    numbers = {least, 1, 2, 3, 4, 6, 9, 264}
    return [*get_args(field.annotation)] or [number for number in numbers if number <= most]


@st.composite
def grids(draw) -> tuple[type, dict, dict[str, list]]:
    """A legal model and run, and some fields that take other values, legal together or not."""
    kinds = [decoders(), decoders(), hybrids(), *map(architectures, SHAPES)]
    a, run = draw(draw(st.sampled_from(kinds))), draw(runs())
    if run_mistake(a, run):
        run = RunConfig(length=run.length)
    values = a.model_dump() | run.model_dump()
    fields = type(a).model_fields | RunConfig.model_fields
    axes = {}
    for name in draw(
        st.lists(st.sampled_from(sorted(fields)), min_size=2, max_size=4, unique=True)
    ):
        patterns = PATTERNS if isinstance(a, Decoder) else {"mixers": ["hybrid"]}
        patterns = patterns | {
            "adapter_targets": ["all-linear", "query value"],
            "trained": ["default", "norms", "all"],
            "modules_to_save": ["none", "head"],
            "kept_in_dtype": ["none", "mlp.down"],
            "host_tensors": ["", "exps"],
        }
        others = patterns.get(name) or choices(fields[name])
        drawn = draw(st.lists(st.sampled_from(others), min_size=1, max_size=2))
        axes[name] = [*dict.fromkeys([values[name], *drawn])]
    return type(a), values, axes


def rows(values: dict, axes: dict[str, list]) -> list[dict]:
    return [values | dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]


def refused(family, row: dict) -> str | None:
    """The message with which the records reject a row, or None."""
    try:
        a = family(**{name: row[name] for name in family.model_fields})
        run = RunConfig.model_validate({name: row[name] for name in RunConfig.model_fields})
    except ValidationError as error:
        (mistake,) = error.errors()
        return str(mistake["ctx"]["error"])
    return first_mistake(quantity_constraints(family, QUANTITIES), vars(a) | vars(run))


def refused_in_columns(family, values: dict, axes: dict[str, list]) -> Counter:
    """The messages with which a grid rejects its rows, and how many each."""
    fields = {name: value for name, value in values.items() if name not in axes}
    base = Base("base", "base", family, fields, {})
    measure = {"device": "none", "quantities": [*QUANTITIES]}
    sweep = Sweep(title="t", question="q", base="base", grid=axes, measure=measure)
    mistakes = Mistakes(Path("sweep.yaml"))
    Grid("base", base, sweep).check(mistakes)
    return Counter({line: times for line, (_, times) in mistakes.points.items()})


def refused_by_vega(family, some: list[dict]) -> list[list[str]]:
    """For each row all messages, computed by Vega itself: drawn as text, and read from there."""
    checks = (
        family.all_constraints()
        + RunConfig.all_constraints()
        + quantity_constraints(family, QUANTITIES)
    )
    constraints = [check for check in checks if isinstance(check, Constraint)]
    switches = [name for name, value in some[0].items() if isinstance(value, bool)]
    found = [vega_constraints.mistake(one, switches) for one in constraints]
    signals = [{"name": f"mistake{i}", "update": text} for i, text in enumerate(found)]
    listed = {"signal": f"join([{','.join(one['name'] for one in signals)}],'|')"}
    groups = [
        {
            "type": "group",
            "signals": [{"name": n, "value": _number(v)} for n, v in row.items()] + signals,
            "marks": [{"type": "text", "encode": {"update": {"text": listed}}}],
        }
        for row in some
    ]
    drawn = vl_convert.vega_to_svg({"width": 9, "height": 9, "marks": groups})
    texts = re.findall(r"<text[^>]*>(.*?)</text>", drawn)
    return [[*filter(None, html.unescape(text).split("|"))] for text in texts]


def _number(value: int | str) -> int | str:
    """A switch as the page has it."""
    return int(value) if isinstance(value, bool) else value


@given(grids())
@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
def test_records_columns_and_vega_refuse_the_same(grid):
    """With the same words. Vega lacks the one check that is no expression."""
    family, values, axes = grid
    some = rows(values, axes)
    expected = [refused(family, row) for row in some]
    assert refused_in_columns(family, values, axes) == Counter(filter(None, expected))
    for message, found in zip(expected, refused_by_vega(family, some), strict=True):
        if "is empty" not in (message or ""):
            assert found[:1] == [message] * (message is not None)


@pytest.mark.parametrize("kind", [*families().values(), RunConfig])
def test_constraints_name_fields(kind):
    """Those of a class of fields alone may name what each family that uses it has."""
    for check in kind.all_constraints():
        if isinstance(check, Constraint):
            assert check.names <= kind.model_fields.keys()


@pytest.mark.parametrize("kind", [*families().values(), RunConfig])
def test_constraints_that_read_defaults_alone_hold(kind):
    """Records do not check them. Those that a record leaves out are among them."""
    defaults = kind.defaults()
    for check in kind.all_constraints():
        if isinstance(check, Constraint) and check.holds.names <= defaults.keys():
            assert check(defaults) is None
        for name in kind.model_fields:
            is_read = not isinstance(check, Constraint) or name in check.holds.names
            assert not is_read or check in kind.constraints_about(frozenset([name]))


def test_a_message_holds_values():
    constraint = Constraint(
        "n_ctx % 2 == 0",
        "n_ctx = {n_ctx:,} is twice {n_ctx / 2}, tied: {tied}, norm: '{norm}'",
        when="tied and norm in ('rmsnorm', 'layernorm')",
    )
    values = {"n_ctx": 4097, "tied": True, "norm": "rmsnorm"}
    assert constraint(values) == "n_ctx = 4,097 is twice 4097/2, tied: true, norm: 'rmsnorm'"
    assert constraint(values | {"n_ctx": 4096}) is None
    assert constraint(values | {"tied": False}) is None
    assert constraint.names == {"n_ctx", "tied", "norm"}


def test_chunks_need_a_window():
    fields = {"n_vocab": 8, "d_model": 8, "n_head": 2, "n_kv_head": 2, "d_head": 4, "d_ff": 8}
    with pytest.raises(ValidationError, match="window_in_chunks = true needs window"):
        Decoder(n_layer=1, window_in_chunks=True, **fields)


def test_complex_tables_of_rope_are_of_whole_heads():
    """As torchtitan rotates them; of a part of each head no program is known."""
    model = mb.model("llama-3-8b", n_layer=1, d_rotary=64)
    with pytest.raises(InputError, match="d_rotary = 64: torchtitan rotates whole heads"):
        model.predict("activation_bytes", {"rope_tables": "complex"})
