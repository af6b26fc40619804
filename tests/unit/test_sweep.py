"""What sweep files mean: axes, derived fields, constraints, points."""

import cProfile
import io
import operator
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import modelbudget as mb
from modelbudget.common.errors import InputError
from modelbudget.common.expressions import Expression
from modelbudget.common.files import load_yaml, yaml_files
from modelbudget.common.paths import CONFIGS
from modelbudget.sweeps import expand
from modelbudget.sweeps.device_defaults import DECIDED
from modelbudget.sweeps.sweep_file import Range


def test_grid_is_every_combination_in_the_order_of_the_file(sweep):
    points = sweep("base: palm-8b\ngrid: {n_layer: [1, 2], tied: [true, false]}").points
    assert [point.axes for point in points] == [
        {"n_layer": 1, "tied": True},
        {"n_layer": 1, "tied": False},
        {"n_layer": 2, "tied": True},
        {"n_layer": 2, "tied": False},
    ]
    assert [point.architecture.tied for point in points] == [True, False, True, False]


def test_points_follow_the_grid_and_may_have_bases_and_labels_of_their_own(sweep):
    points = sweep(
        "base: palm-8b\ngrid: {n_layer: [1]}\n"
        "points: [{base: gpt-2-355m}, {label: Mine, n_layer: 7}]"
    ).points
    assert [point.label for point in points] == ["n_layer = 1", "GPT-2 355M", "Mine"]
    assert [point.architecture.n_layer for point in points] == [1, 24, 7]
    assert points[1].architecture.d_model == 1024


def test_a_grid_may_go_over_bases(sweep):
    points = sweep("grid: {base: [gpt-2-124m, palm-8b], n_layer: [1, 2]}").points
    assert [point.label for point in points] == [
        f"{base}, n_layer = {n_layer}" for base in ("GPT-2 124M", "PaLM 8B") for n_layer in (1, 2)
    ]
    assert [point.architecture.d_model for point in points] == [768, 768, 4096, 4096]
    assert points[0].axes == {"base": "gpt-2-124m", "n_layer": 1}


def test_a_base_may_have_a_name_that_the_command_knows(sweep):
    """Only here: a sweep takes the names of models of equal shape, as README's commands do."""
    (point,) = sweep("points: [{base: llama-3.1-8b}]").points
    assert point.label == "llama-3.1-8b (shape of Llama 3 8B)"
    by_hand = sweep("points: [{base: llama-3-8b, n_ctx: 131072}]").points[0]
    assert point.architecture == by_hand.architecture


def test_short_names_of_dtypes_mean_what_they_mean_in_the_command(sweep):
    of_grid = "base: gpt-2-124m\nfixed: {dtype: fp32}\ngrid: {autocast: [bf16, FP16]}\n"
    in_grid, _, labelled = sweep(f"{of_grid}points: [{{label: fp16, dtype: fp16}}]").points
    assert (in_grid.run.dtype, in_grid.run.autocast) == ("float32", "bfloat16")
    assert in_grid.label == "autocast = bfloat16"
    assert (labelled.run.dtype, labelled.label) == ("float16", "fp16")
    with pytest.raises(InputError, match=r"grid.dtype: contains 'bfloat16' 2 times"):
        sweep("base: gpt-2-124m\ngrid: {dtype: [bf16, bfloat16]}")


def test_what_is_chosen_comes_before_what_follows(sweep):
    """Chosen values before a sweep's derive, that before the base, that before the family."""

    def only(text: str):
        return sweep(f"base: gpt-2-124m\n{text}").points[0].architecture

    assert only("grid: {d_model: [1536]}").d_ff == 4 * 1536  # the series derives it
    assert only("grid: {d_model: [1536]}").d_head == 128  # the family derives it, 12 heads
    assert only("grid: {n_layer: [1]}\nderive: {d_ff: 96}").d_ff == 96
    narrow = only("grid: {d_model: [1536]}\nderive: {n_head: d_model / 64, d_ff: 2 * d_model}")
    assert (narrow.n_head, narrow.n_kv_head, narrow.d_head, narrow.d_ff) == (24, 24, 64, 3072)
    assert only("grid: {d_ff: [100]}").d_ff == 100
    assert only("fixed: {n_kv_head: 4}\ngrid: {n_layer: [1]}").n_kv_head == 4


def test_what_a_sweep_does_not_set_is_as_a_gpu_runs_it(sweep):
    """The same run as in Python and in the command, by base, and by the value of an axis."""
    names = ["gpt-2-124m", "llama-3-8b", "bloom-560m", "deepseek-v3", "mamba-2.8b"]
    points = sweep(f"points: [{', '.join(f'{{base: {name}}}' for name in names)}]").points
    assert [point.run for point in points] == [mb.model(name).run() for name in names]
    assert (points[0].run.dtype, points[0].run.attention_kernel) == ("bfloat16", "flash")
    assert points[0].run.foreach

    def kernels(grid: str) -> list[str]:
        return [point.run.attention_kernel for point in sweep(f"base: gpt-2-124m\n{grid}").points]

    assert kernels("grid: {d_head: [64, 66, 320]}") == ["flash", "math", "efficient"]
    assert kernels("grid: {dtype: [float32, float64]}") == ["efficient", "math"]
    assert kernels("grid: {implementation: [nanogpt, megatron]}\nfixed: {d_head: 320}") == [
        "efficient",
        "efficient",
    ]
    # What an expression reads is there before it.
    derived = sweep(
        "base: gpt-2-124m\ngrid: {d_head: [64, 66]}\n"
        "derive: {batch: 3 + (attention_kernel = 'math')}"
    )
    assert [point.run.batch for point in derived.points] == [3, 4]


def test_constraints_drop_points_before_they_are_checked(sweep):
    expanded = sweep(
        "base: gpt-2-124m\ngrid: {n_head: [5, 6, 7, 8]}\nconstraints: [d_model % n_head = 0]"
    )
    assert [point.architecture.n_head for point in expanded.points] == [6, 8]
    assert expanded.dropped == 2


def test_equal_architectures_have_equal_digests_and_others_do_not(sweep):
    points = sweep(
        "base: gpt-2-124m\npoints: [{label: As published}, {n_layer: 12}, {n_layer: 11}]"
    ).points
    first, same, other = (point.architecture.digest() for point in points)
    assert first == same != other


LARGE = """base: gpt-2-124m
fixed: {n_head: 1}
points:
  - {n_vocab: 1125899906842624, d_model: 8}
  - {n_vocab: 8, d_model: 33554432}
"""


def test_only_what_overflows_is_refused(sweep):
    """The largest vocabulary with the largest width would, and no point has both."""
    assert len(sweep(LARGE).points) == 2
    both = "  - {n_vocab: 1125899906842624, d_model: 33554432}"
    with pytest.raises(InputError) as error:
        sweep(LARGE + both)
    (line,) = error.value.mistakes
    assert "64-bit integer (at n_vocab = 1125899906842624, d_model = 33554432)" in line


@given(
    start=st.integers(1, 10**6),
    length=st.integers(1, 10**6),
    steps=st.integers(2, 50),
    unit=st.sampled_from([1, 8, 64]),
    scale=st.sampled_from(["linear", "logarithmic"]),
)
def test_ranges_rise_from_one_end_to_the_other_in_multiples(start, length, steps, unit, scale):
    start, stop = start * unit, (start + length) * unit
    axis = Range.model_validate(
        {"from": start, "to": stop, "steps": steps, "scale": scale, "multiple_of": unit}
    )
    values = axis.values()
    assert (values[0], values[-1]) == (start, stop)
    assert values == sorted(set(values))
    assert len(values) <= steps
    assert all(value % unit == 0 for value in values)


@pytest.mark.parametrize(("start", "stop"), [(100, 1000), (33, 95), (1, 64)])
@pytest.mark.parametrize("scale", ["linear", "logarithmic"])
def test_multiples_are_not_outside_of_their_range(start, stop, scale):
    """From 100 to 1,000 in multiples of 64: 128 to 960, where 100 is nearer to 64 too."""
    ends = {"from": start, "to": stop, "scale": scale, "multiple_of": 64}
    values = Range.model_validate(ends | {"steps": 50}).values()
    assert values == [n for n in range(64, 1025, 64) if start <= n <= stop]


def test_a_range_without_a_multiple_is_a_mistake():
    with pytest.raises(ValueError, match="no multiple of 64 from 65 to 127"):
        Range.model_validate({"from": 65, "to": 127, "steps": 2, "multiple_of": 64})


def test_a_logarithmic_range_has_equal_ratios():
    axis = Range.model_validate({"from": 1, "to": 10_000, "steps": 5, "scale": "logarithmic"})
    assert axis.values() == [1, 10, 100, 1_000, 10_000]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("d_model / n_head", 64),
        ("d_model / 7", Fraction(768, 7)),
        ("d_model // 7", 109),
        ("1.5 * d_model", 1152),
        ("2 * ceil(d_model / 7) + max(1, n_head)", 2 * 110 + 12),
        ("min(256, d_model)", 256),
        ("-(-d_model // 7)", 110),
        ("d_model % n_head = 0", True),
        ("d_model % n_head == 0 and n_head > 12", False),
        ("0.1 + 0.2", Fraction(3, 10)),
    ],
)
def test_expressions_are_exact(text, value):
    assert Expression(text)({"d_model": 768, "n_head": 12}) == value


TREES = st.recursive(
    st.sampled_from(["a", "b", "c", "2", "7"]),
    lambda part: st.one_of(
        st.tuples(part, st.sampled_from(["+", "-", "*", "//", "%", "/"]), part),
        st.tuples(st.sampled_from(["max", "min"]), part, part),
    ),
    max_leaves=8,
)
OPERATIONS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "%": operator.mod, "/": lambda x, y: Fraction(x) / Fraction(y), "max": max, "min": min,
}  # fmt: skip


def written(tree) -> str:
    if isinstance(tree, str):
        return tree
    if tree[0] in ("max", "min"):
        return f"{tree[0]}({written(tree[1])}, {written(tree[2])})"
    return f"({written(tree[0])} {tree[1]} {written(tree[2])})"


def worked_out(tree, values: dict):
    if isinstance(tree, str):
        return values[tree] if tree in values else int(tree)
    name, x, y = tree if tree[0] in ("max", "min") else (tree[1], tree[0], tree[2])
    return OPERATIONS[name](worked_out(x, values), worked_out(y, values))


@given(tree=TREES, a=st.integers(-5, 99), b=st.integers(1, 2**63), c=st.booleans())
def test_an_expression_is_what_its_operators_are(tree, a, b, c):
    values = {"a": a, "b": b, "c": c}
    try:
        expected = worked_out(tree, values)
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="divides by zero"):
            Expression(written(tree))(values)
    else:
        assert Expression(written(tree))(values) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 < d < 3", True),
        ("1 < d < 2", False),
        ("3 > d >= d_min and norm = 'rmsnorm'", True),
        ("not d > 1 or norm != 'rmsnorm'", False),
        ("none = None", True),
        ("(d > 1) = true and (d > 2) = false", True),
        ("norm in ('layernorm', 'rmsnorm')", True),
        ("norm not in ('layernorm', 'rmsnorm')", False),
        ("'mlp' in mlps", True),
        ("'ml' in mlps", False),
        ("'moe' in first(mlps, d - 1)", False),
        ("d * exp2(d + 1) = 16", True),
    ],
)
def test_comparisons_are_chained_and_take_words(text, value):
    values = {"d": 2, "d_min": 2, "norm": "rmsnorm", "none": None, "mlps": "mlp moe"}
    assert Expression(text)(values) is value


def grid_of(n_vocab: int, n_constraints: int) -> str:
    constraints = "".join(f"  - d_model * n_layer + {i} >= {i}\n" for i in range(n_constraints))
    return (
        "base: gpt-2-124m\ngrid:\n  d_model: [768, 1536]\n  n_layer: [1, 2, 3, 4, 5]\n"
        f"  n_vocab: {{from: 1, to: {n_vocab}, steps: {n_vocab}}}\n"
        f"constraints:\n{constraints}"
    )


def test_constraints_take_work_in_proportion_to_the_points(sweep):
    """Eight times as many points: no more than twice eight times as many calls of functions."""

    def calls(n_vocab: int) -> int:
        profile = cProfile.Profile()
        expanded = profile.runcall(sweep, grid_of(n_vocab, n_constraints=40))
        assert len(expanded.points) == 10 * n_vocab
        return sum(entry.callcount for entry in profile.getstats())

    calls(10)  # what is read once
    assert calls(120) < 16 * calls(15)


def test_a_terminal_shows_progress_and_nothing_else_does(sweep, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(expand, "PROGRESS_AFTER_S", 0)
    shown = {}
    for kind in (Terminal, io.StringIO):
        monkeypatch.setattr(sys, "stderr", kind())
        sweep(grid_of(10, n_constraints=1))
        shown[kind] = sys.stderr.getvalue()
    assert "sweep.yaml: checking points" in shown[Terminal]
    assert "/100 " in shown[Terminal]
    assert shown[io.StringIO] == ""


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('true')", "().__class__", "[1]", "x := 3", "lambda: 1", "{1: 2}",
     "d_model if 1 else 2", "f'{d_model}'", "9 ** 9", "open", "max(*d_model)", "1 << 99",
     "exp2(d_model * 2)", "exp2(0 - 1)", "1 in d_model",
     "first(d_model, 1)", "[x for x in (1, 2)]"],
)  # fmt: skip
def test_expressions_hold_arithmetic_and_nothing_else(text):
    with pytest.raises(ValueError, match=r"allowed|has no value"):
        Expression(text)({"d_model": 768})


def test_shipped_sweeps_state_what_a_gpu_would_decide():
    """Their numbers do not change with the defaults; a CPU's run has none of these."""
    for path in yaml_files(CONFIGS / "sweeps"):
        file = load_yaml(path)
        everywhere = {**file.get("fixed", {}), **file.get("grid", {}), **file.get("derive", {})}
        if everywhere.get("backend") != "cpu":
            assert everywhere.keys() >= DECIDED.keys(), path.name
