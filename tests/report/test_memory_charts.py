"""Charts of memory: parts that add up to what was measured, and findings that can be recounted."""

import itertools
import json

import polars as pl
import pytest
import vl_convert
from helpers.results import charts_of_sweep

from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.report.charts.peak import OF_INFERENCE, of_points, parts_of_inference, peak_parts
from modelbudget.report.charts.vs_length import by_length

DEVICES = [
    Accelerator(name="small", bytes=3_000, source="a test"),
    Accelerator(name="large", bytes=20_000, source="a test"),
]


def comparison(points: list[tuple[str, dict, dict]]) -> pl.DataFrame:
    """Points as label, swept fields, and values by quantity and component."""
    rows = [
        {"point": f"{number:06}", "label": label, **fields, "component": component,
         "quantity": quantity, "predicted": value, "measured": value, "percent": None,
         "prediction": "formula"}
        for number, (label, fields, quantities) in enumerate(points, start=1)
        for quantity, components in quantities.items()
        for component, value in components.items()
    ]  # fmt: skip
    return pl.from_dicts(rows, infer_schema_length=None)


def live(parameters: int, rest: int) -> dict:
    """A peak with twice as many bytes of states, 300 of buffers and 350 of activations."""
    return {
        "bytes_at_peak": {
            "parameters": parameters, "optimizer_states": 2 * parameters,
            "communication_buffers": 300, "activations.layer.mlp.up": 200,
            "activations.layer.attention": 100, "activations.loss": 50, "temporary": rest,
        }
    }  # fmt: skip


def step(parameters: int, backward: int, optimizer: int) -> dict:
    """A step whose backward pass begins with parameters, thrice as many bytes of states, 500 of
    activations and 100 of the loss.
    """
    return {
        "parameter_bytes": {"embedding.token": parameters - 10, "norm": 10},
        "gradient_bytes": {"embedding.token": parameters - 10, "norm": 10},
        "optimizer_bytes": {"embedding.token": 3 * parameters},
        "activation_bytes": {"layer.mlp": 500, "head": 40, "loss": 60},
        "peak_training_bytes": {
            "first.forward_backward": 1, "first.optimizer": optimizer,
            "second.forward_backward": backward, "second.optimizer": optimizer,
        },
    }  # fmt: skip


STEPS = comparison([("tiny", {}, step(100, 1_200, 700)), ("huge", {}, step(5_000, 22_000, 40_000))])


def test_parts_of_memory_add_up_to_the_measured_peak():
    table = peak_parts(STEPS)
    sums = table.group_by("point", "phase").agg(pl.col("value").sum(), pl.col("peak").first())
    assert sums["value"].to_list() == sums["peak"].to_list()
    tiny = table.filter(pl.col("label") == "tiny", pl.col("phase") == "forward_backward")
    assert dict(tiny.select("group", "value").rows()) == {
        "parameters": 100, "optimizer states": 300, "activations": 500,
        "logits and loss": 100, "temporary": 200,
    }  # fmt: skip
    huge = table.filter(pl.col("label") == "huge", pl.col("phase") == "optimizer")
    assert dict(huge.select("group", "value").rows()) == {
        "parameters": 5_000, "optimizer states": 15_000, "gradients": 5_000, "temporary": 15_000,
    }  # fmt: skip
    assert set(table["worst"]) == {1_200, 40_000}


def test_a_whole_step_names_what_sets_its_peak_and_who_holds_it():
    found = charts_of_sweep({}, STEPS, DEVICES)
    parts = found["peak-parts"].to_dict()
    assert (
        "The peak is 1.2 kB (tiny) to 40 kB (huge); the backward pass sets it for tiny, the "
        "optimizer step sets it for huge." in parts["description"]
    )
    assert "In the backward pass of tiny, 41.7 % is activations." in parts["description"]
    assert "In the optimizer step of huge, 37.5 % is" in parts["description"]
    assert "tiny fits on small (3 kB); huge needs 2 × large" in parts["description"]
    svg = vl_convert.vegalite_to_svg(parts)
    assert svg.count("<path") > 2
    assert "NaN" not in svg


def test_without_a_whole_step_there_is_no_such_chart():
    some = STEPS.filter(pl.col("quantity") != "optimizer_bytes")
    assert not any(name.startswith("peak") for name in charts_of_sweep({}, some, DEVICES))


LENGTHS = [128, 256, 512, 1024, 2048]


def along(quantity: str, lines: dict, **more) -> tuple[dict, pl.DataFrame]:
    """One point for each line (a polynomial of length) and length."""
    points = [
        (
            f"length = {n}, attention = {name}",
            {"length": n, "attention_kernel": name},
            {quantity: {"layer.attention": line(n)}} | {k: {"head": v} for k, v in more.items()},
        )
        for n, (name, line) in itertools.product(LENGTHS, lines.items())
    ]
    return {"length": LENGTHS, "attention_kernel": list(lines)}, comparison(points)


def test_length_squared_dominates_where_it_exceeds_the_rest():
    def rest(n):
        return 24 + 1_000 * n

    axes, table = along("activation_bytes", {"math": lambda n: rest(n) + 3 * n * n, "flash": rest})
    crossing = next(n for n in range(1, 2048) if 3 * n * n >= rest(n))
    chart = charts_of_sweep(axes, table, DEVICES)["activation-bytes-total"]
    assert chart.description.endswith(
        f"With attention = math, length² dominates from {crossing} tokens on; "
        "with attention = flash, nothing grows with length²."
    )
    assert f"dominates from {crossing}" in vl_convert.vegalite_to_svg(chart.to_dict())


def test_what_is_no_polynomial_gets_no_crossing():
    _, table = along("activation_bytes", {"odd": lambda n: 100 * n + n**3 // 7})
    assert "no line is a polynomial" in by_length(table, "activation_bytes").description.lower()


def test_the_cache_exceeds_the_weights_from_a_length_on():
    lines = {"a": lambda n: 7 * n, "b": lambda n: 50 * n}
    axes, table = along("cache_bytes", lines, parameter_bytes=9_000)
    chart = charts_of_sweep(axes, table, DEVICES)["cache-bytes-total"]
    first = [next(n for n in range(10_000) if size * n >= 9_000) for size in (7, 50)]
    of_a, of_b = (
        f"from {n:,} tokens on (attention = {x})" for n, x in zip(first, "ab", strict=True)
    )
    assert f"{of_a}, and {of_b}" in chart.description
    spec = chart.to_dict()
    drawn = [row["value"] for rows in spec["datasets"].values() for row in rows if "length" in row]
    assert sorted(drawn) == sorted(size * n / 9_000 for size in (7, 50) for n in LENGTHS)


def test_many_lines_are_counted_by_what_they_find():
    """Eight clauses of a title, one for each line, were not read."""
    lines = {name: lambda n: 50 * n for name in "abc"} | {"d": lambda n: n * n, "e": lambda n: n}
    _, table = along("activation_bytes", lines)
    found = by_length(table, "activation_bytes").description
    assert "in 1 of 5 lines length² dominates from" in found
    assert "In 4 of 5 lines nothing grows with length²" in found


def test_a_cache_without_weights_is_no_question_of_length_squared():
    axes, table = along("cache_bytes", {"a": lambda n: 7 * n})
    chart = charts_of_sweep(axes, table, DEVICES)["cache-bytes-total"]
    assert "grows from 896 bytes to 14.3 kB" in chart.description


def test_a_grid_has_a_chart_of_each_peak_and_none_of_what_does_not_vary():
    """A sweep over ranks of LoRA opened with "no share changes", and drew no memory at all."""
    ranks, targets = [1, 4, 16, 64, 256], ["all-linear", "query value"]
    points = [
        (
            f"adapter_rank = {rank}, adapter_targets = {target}",
            {"adapter_rank": rank, "adapter_targets": target},
            {
                "parameters": {"embedding.token": 700, "layer.mlp.up": 300}
                | ({"layer.mlp.up.lora_A": 0} if target == "all-linear" else {}),
                "optimizer_bytes": {"layer.mlp.up.lora_A": rank * len(target)},
                "peak_training_bytes": {
                    "second.forward_backward": 5_000 + rank,
                    "second.optimizer": 2_000 * rank,
                },
            },
        )
        for rank, target in itertools.product(ranks, targets)
    ]
    axes = {"adapter_rank": ranks, "adapter_targets": targets}
    drawn = charts_of_sweep(axes, comparison(points), DEVICES)
    assert list(drawn) == ["peak-training-bytes-every-point", "optimizer-bytes-every-point"]
    peak, states = (" ".join(chart.to_dict()["title"]["subtitle"]) for chart in drawn.values())
    assert "512 kB of peak training memory, 102 × that of adapter_rank = 1" in peak
    assert f"{256 * 11 / 1_000:.3g} kB of optimizer state, 282 × that" in states
    (alone,) = charts_of_sweep({"adapter_rank": ranks}, comparison(points[::2]), DEVICES).keys() - {
        "optimizer-bytes-every-point"
    }
    assert alone == "peak-training-bytes-every-point"
    for chart in drawn.values():
        vl_convert.vegalite_to_svg(json.dumps(chart.to_dict()))


def test_amounts_of_one_group_are_drawn_as_amounts():
    """Shares of one group are all 100 %."""
    caches = [("one", 500), ("two", 20_000), ("three", 3_000)]
    table = comparison([(name, {}, {"cache_bytes": {"layer.attention": n}}) for name, n in caches])
    chart = charts_of_sweep({}, table, DEVICES)["cache-bytes-models"]
    assert "two: 20 kB of KV cache or state, 40 × that of one (500 bytes" in chart.description
    assert "share" not in json.dumps(chart.to_dict()["layer"][0])


def test_parts_of_inference_add_up_to_the_measured_peaks():
    def model(weights, cache, prefill, decode):
        peaks = {"prefill": prefill, "decode": decode}
        return {"parameter_bytes": {"head": weights}, "cache_bytes": {"layer.attention": cache},
                "peak_inference_bytes": peaks}  # fmt: skip

    models = {"a": (600, 100, 1_000, 750), "b": (900, 9, 1_000, 910), "c": (600, 100, 500, 500)}
    table = comparison([(name, {}, model(*values)) for name, values in models.items()])
    # Without c, whose peak is before its cache is whole.
    parts = of_points(table, OF_INFERENCE, parts_of_inference)
    sums = parts.group_by("label", "phase").agg(pl.col("value").sum()).sort("label", "phase")
    assert sums.rows() == [("a", "decode", 750), ("a", "prefill", 1_000), ("b", "decode", 910),
                           ("b", "prefill", 1_000)]  # fmt: skip
    found = charts_of_sweep({}, table, DEVICES)["inference-parts"]
    assert "the weights are 60.0 % (a) to 90.0 % (b) of the peak" in found.description
    assert "relative to the weights is that of a: 16.7 % of them" in found.description
    assert "prefill" in vl_convert.vegalite_to_svg(found.to_dict())


def quantities(saved: int, forward: int, backward: int) -> dict:
    values = {"activation_bytes": saved, "flops_forward": forward, "flops_backward": backward}
    return {quantity: {"layer": value} for quantity, value in values.items()}


RECOMPUTED = {"none": (1_000, 50), "selective": (250, 51), "full": (20, 65)}


@pytest.mark.parametrize("axis", [{}, {"n_layer": [2, 4]}, {"attention_kernel": ["math", "flash"]}])
def test_memory_saved_for_flops_added(axis):
    axes = {"recompute": list(RECOMPUTED)} | axis
    points = []
    for values in itertools.product(*axes.values()):
        fields = dict(zip(axes, values, strict=True))
        saved, operations = RECOMPUTED[fields["recompute"]]
        times = fields.get("n_layer", 1)
        label = ", ".join(map(str, values))
        points.append((label, fields, quantities(saved * times, 50 * times, operations * times)))
    table = comparison(points)
    chart = charts_of_sweep(axes, table, DEVICES)["checkpointing"]
    assert "saves 75.0 % of the activations for 1.0 % more FLOPs" in chart.description
    assert "full 98.0 % for 15.0 %" in (chart.description)
    assert "NaN" not in vl_convert.vegalite_to_svg(chart.to_dict())
    panels = len(axes.get("attention_kernel", [""]))
    assert len(chart.to_dict()["concat"]) == panels


def test_nothing_to_compare_with_gives_no_price():
    table = comparison([("a", {"recompute": "full"}, quantities(1, 1, 1))])
    assert "checkpointing" not in charts_of_sweep({"recompute": ["full"]}, table, DEVICES)


def test_memory_of_a_grid_of_devices_has_a_bar_for_each_and_adds_up():
    axes = {"zero": [0, 3], "data_parallel": [2, 8]}
    points = [
        (
            f"{zero} {devices}",
            {"zero": zero, "data_parallel": devices},
            live(800 if zero == 0 else 800 // devices, 1000),
        )
        for zero, devices in itertools.product(*axes.values())
    ]
    drawn = charts_of_sweep(axes, comparison(points), DEVICES)
    assert list(drawn) == ["by-layout"]
    spec = drawn["by-layout"].to_dict()
    lines, bars = (
        [row for rows in spec["datasets"].values() for row in rows if name in row]
        for name in ("device", "group")
    )
    # 20,000 bytes are more than twice the largest peak: their line would flatten the bars.
    assert lines == [{"bytes": 3_000, "device": "small · 3 kB"}]
    sums = {}
    for row in bars:
        sums[row["label"]] = sums.get(row["label"], 0) + row["value"]
    assert sums == {"0 2": 4_050, "0 8": 4_050, "3 2": 2_850, "3 8": 1_950}
    assert {row["group"]: row["value"] for row in bars if row["label"] == "3 8"} == {
        "parameters": 100, "optimizer states": 200, "communication buffers": 300,
        "activations": 300, "logits and loss": 50, "temporary": 1_000,
    }  # fmt: skip
    finding = " ".join(spec["title"]["subtitle"])
    assert "A step of 8 batches needs 1.95 kB (3 8) to 4.05 kB (0 8) on one device." in finding
    vl_convert.vegalite_to_svg(json.dumps(spec))


def test_a_title_compares_layouts_of_equal_steps_and_the_stage_that_needs_most():
    """It compared steps of 64 and of 8 sequences, and named a pipeline's second stage."""
    points = [
        ("data 8", {"data_parallel": 8, "pipeline_parallel": 1}, live(8_000, 1_000)),
        ("data 8, small", {"data_parallel": 8, "pipeline_parallel": 1}, live(800, 1_000)),
        *((f"{rank} stage", {"data_parallel": 1, "pipeline_parallel": 8, "pipeline_rank": rank},
           live(n, 100)) for rank, n in (("first", 900), ("second", 400))),
    ]  # fmt: skip
    drawn = charts_of_sweep({}, comparison(points), DEVICES)["by-layout"].to_dict()
    finding = " ".join(drawn["title"]["subtitle"])
    assert finding.startswith("A step of 8 batches needs ")
    first, second, *_ = finding.split(". ")
    assert first.endswith("(data 8) on one device")
    assert second.startswith("A step of 1 batch needs")
    assert "(first stage)" in second
    assert "second stage" not in finding


def test_layouts_of_each_base_have_their_own_chart():
    points = [
        (
            f"{base} {n}",
            {"base": base, "tensor_parallel": n},
            live(800 * size // n, 1_000 * size),
        )
        for base, size in (("a", 1), ("b", 100))
        for n in (1, 2)
    ]
    drawn = charts_of_sweep({}, comparison(points), DEVICES)
    of_base = [drawn[f"by-layout-{base}"].to_dict() for base in "ab"]
    devices = [
        [row["device"] for rows in spec["datasets"].values() for row in rows if "device" in row]
        for spec in of_base
    ]
    assert devices == [["small · 3 kB"], ["small · 3 kB", "large · 20 kB"]]
    for spec, base, most in zip(of_base, "ab", ("4.05 kB", "341 kB"), strict=True):
        assert f"to {most} ({base} 1) on one device" in spec["description"]
        vl_convert.vegalite_to_svg(json.dumps(spec))
    alone = charts_of_sweep({}, comparison(points[1:]), DEVICES)
    assert "by-layout" in alone
    assert not any(name.startswith("by-layout-") for name in alone)
