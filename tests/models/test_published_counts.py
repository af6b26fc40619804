"""Counts that others have published or that can be worked by hand: predicted and measured."""

import re
from functools import cache

import polars as pl
import pytest
from helpers.few_layers import of_few_layers
from helpers.project import ROOT
from helpers.tiers import ALL

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.compare.comparison import compare
from modelbudget.measurement.measured_table import measured_table
from modelbudget.measurement.one_model import measure_one
from modelbudget.measurement.process.device import Room
from modelbudget.measurement.process.measure_in_processes import measure_all
from modelbudget.predict.predict import predict
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.expand import Expanded, expand
from modelbudget.sweeps.point import Point
from modelbudget.sweeps.points_table import points_table
from modelbudget.sweeps.quantity_names import OF_PROCESS
from modelbudget.sweeps.sweep_file import Measure

NO_ROOM = Room(cpu=0, cuda=0)


def measured_parameters(architecture, device="meta", room=NO_ROOM):
    return measure_one(architecture, RunConfig(), Measure(device=device), room)


NAMED = {
    # KerasHub's presets
    "gpt-2-124m": 124_439_808,
    "gpt-2-355m": 354_823_168,
    "gpt-2-774m": 774_030_080,
    "gpt-2-1558m": 1_557_611_200,
    # metadata of the released checkpoints
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    # Chowdhery et al. 2022, Table 1, prints 8.63B, 62.50B and 540.35B; summed up by hand
    "palm-8b": 8_632_012_800,
    "palm-62b": 62_495_662_080,
    "palm-540b": 540_356_474_880,
    "palm-540b-without-scales": 540_354_281_472,  # 119 norms of 18,432 scales fewer
    # by hand: 33,278 × 368 + 4 × (10,304 + 542,432 + 1,083,760)
    "hybrid-368": 18_792_288,
}

BIASES = (
    "query_bias: true, key_bias: true, value_bias: true, output_bias: true, "
    "up_bias: true, down_bias: true"
)
ATTENTION_BIASES = "query_bias: true, key_bias: true, value_bias: true, output_bias: true"
LADDER = {  # by hand, with d_model 5
    "base: embedding, n_vocab: 256": 1_280,  # 256 × 5
    "base: embedding-lm, n_vocab: 256": 1_280,
    "base: embedding-lm, n_vocab: 256, tied: false": 2_560,  # 2 × 1,280
    "base: embedding-lm, n_vocab: 256, tied: false, head_bias: true": 2_816,  # and 256
    # 2 × 5 × 16 + 16 + 5
    "base: mlp, d_ff: 16, up_bias: true, down_bias: true": 181,
    # 1,280 + 181
    "base: feed-forward-lm, n_vocab: 256, d_ff: 16, up_bias: true, down_bias: true": 1_461,
    # 4 × (5 × 5 + 5)
    f"base: attention, n_head: 1, {ATTENTION_BIASES}": 120,
    "base: norm, norm_bias: true": 10,
    # attention 120, MLP 2 × 5 × 5 + 5 + 5, two norms of 10
    f"base: layer, n_head: 1, d_ff: 5, norm_bias: true, {BIASES}": 200,
    # tokens 1,280, positions 50 × 5, attention 120, MLP 181, two norms of 10
    "base: decoder, n_vocab: 256, n_ctx: 50, n_layer: 1, n_head: 1, d_ff: 16, norm_bias: true, "
    f"final_norm: false, {BIASES}": 1_851,
}


@pytest.mark.parametrize(("name", "count"), NAMED.items())
def test_named_model(catalogue, name, count):
    architecture = named_architecture(catalogue[name])
    measured = measured_parameters(architecture, "auto")
    assert total(architecture.parameters(architecture)) == count
    assert sum(measured.values["parameters"].values()) == count
    assert measured.method == "meta"


@pytest.mark.parametrize(("point", "count"), LADDER.items())
def test_counting_ladder(sweep, point, count):
    (only,) = sweep(f"fixed: {{d_model: 5}}\npoints: [{{{point}}}]").points
    measured = measured_parameters(only.architecture, "cpu", Room(cpu=10**9, cuda=0))
    assert total(only.architecture.parameters(only.architecture)) == count
    assert sum(measured.values["parameters"].values()) == count
    assert sum(measured.values["parameter_bytes"].values()) == 4 * count
    assert measured.method == "cpu"


def test_hybrid_by_part(catalogue):
    architecture = named_architecture(catalogue["hybrid-368"])
    counts = measured_parameters(architecture).values["parameters"]
    a_layer = {name: count // 4 for name, count in counts.items()}
    # by hand, with 368 channels of 4 hidden units
    assert a_layer["layer.channel_rnn.input"] == 1_472  # 368 × 4
    assert a_layer["layer.channel_rnn.hidden"] == 5_888  # 368 × 4²
    assert a_layer["layer.channel_rnn.biases"] == 2_944  # 368 × 2 × 4
    attention = sum(n for name, n in a_layer.items() if name.startswith("layer.attention."))
    norms = a_layer["layer.norm.channel_rnn"] + a_layer["layer.norm.attention"]
    assert attention + norms == 542_432  # 4 × 368² and two norms of 368
    mlp = sum(n for name, n in a_layer.items() if name.startswith("layer.mlp."))
    assert mlp + a_layer["layer.norm.mlp"] == 1_083_760  # 2 × 368 × 1,472 and a norm of 368
    assert counts["embedding.token"] == 12_246_304  # 33,278 × 368


def test_hybrid_with_two_states(sweep):
    (point,) = sweep("base: hybrid-368\ngrid: {d_hidden: [2]}").points
    measured = measured_parameters(point.architecture)
    assert sum(measured.values["parameters"].values()) == 18_765_792


SHIPPED = sorted((ROOT / "configs" / "sweeps").iterdir())
# The points of a sweep with `solve` are known after its search (test_solve.py).
MEASURED = [
    path for path in SHIPPED if not re.search("device: none|^solve:", path.read_text(), re.M)
]
BY_DEFAULT = [path for path in MEASURED if "\ndefault: false" not in path.read_text()]


shipped = cache(expand)


def test_more_than_a_thousand_points_ship(catalogue):
    assert sum(len(shipped(path, catalogue).points) for path in MEASURED) > 1_000


@pytest.mark.parametrize("path", BY_DEFAULT, ids=lambda path: path.stem)
def test_shipped_points_agree(catalogue, path):
    """Some of each sweep, of few layers; `make report` compares all as they are."""
    expanded = shipped(path, catalogue)
    n, n_chosen = len(expanded.points), 8 if ALL else 2
    chosen = sorted({i * (n - 1) // (n_chosen - 1) for i in range(n_chosen)})
    agree(expanded._replace(points=[shallow(expanded.points[i]) for i in chosen]))


def shallow(point: Point) -> Point:
    return point._replace(architecture=of_few_layers(point.architecture, point.run))


@pytest.mark.slow
@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_every_shipped_point_agrees(catalogue, path):
    agree(shipped(path, catalogue))


def agree(shipped: Expanded) -> None:
    """Without storage; the memory of processes is measured in `test_resident_memory.py`."""
    models = [(point.architecture, point.run) for point in shipped.points]
    quantities = [one for one in shipped.sweep.measure.quantities if one not in OF_PROCESS]
    settings = shipped.sweep.measure.model_copy(update={"device": "meta", "quantities": quantities})
    measured = measured_table(measure_all(models, settings, 2), settings.quantities)
    points = points_table(shipped.points)
    predicted = predict(points, settings.quantities)
    comparison = compare(points, predicted, measured, [])
    assert comparison.filter(~pl.col("agrees")).is_empty()
    assert comparison["point"].n_unique() == len(shipped.points)
