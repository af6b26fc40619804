"""Published readings of GPUs: every row is in the table, with a close prediction or a reason."""

import re

import pytest

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.memory_margins import memory_margins
from modelbudget.catalogue.published_readings import gpu_readings
from modelbudget.common.errors import InputError
from modelbudget.compare.readings_of_gpus import CLOSE, GIB, Row
from modelbudget.report.page_results import Results
from modelbudget.report.ratios import READINGS, readings_of
from modelbudget.report.sections.gpu_readings import gpu_readings as section_of
from modelbudget.report.tables import environment

READ = gpu_readings(READINGS)


@pytest.fixture(scope="module")
def found(catalogue, readings_once) -> list[Row]:
    return readings_of(Results([]), catalogue)[0]


def test_no_row_is_dropped(found):
    written = re.findall(r"^  - base: (\S+)$", READINGS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [row.reading.base for row in found] == written
    page = environment().get_template("gpu_readings.html.j2")
    html = page.render(section=section_of(found))
    assert html.count("<tr>") - html.count("<thead>") == len(written)
    for row in found:
        assert f">{row.reading.gib:.2f}<" in html


@pytest.mark.parametrize(
    "number",
    range(len(READ.readings)),
    ids=[f"{reading.base} {reading.gib}" for reading in READ.readings],
)
def test_each_is_close_or_has_a_reason(found, number):
    row = found[number]
    assert row.is_close or row.reason
    assert (row.predicted is None) == bool(row.refused)


def test_a_stage_of_megatron_by_hand(found):
    """The first of two stages of 12 layers: weights, main_grad, a quarter of the states."""
    (row,) = [
        one for one in found
        if one.reading.base == "llama-3-70b" and one.reading.settings.get("pipeline_parallel") == 2
    ]  # fmt: skip
    layer = 8192 * (8192 * 2 + 1024 * 2 + 3 * 28672) + 2 * 8192
    resident = (2 + 4 + 12 / 4) * (6 * layer + 128256 * 8192) / GIB
    # Each of two microbatches saves, in bfloat16, per token: 2 inputs of norms and 2 of products,
    # queries, keys and values twice (RoPE), attention's result, gate and up, and their product.
    assert row.predicted is not None
    per_token = 2 * (4 * 8192 + 3 * 8192 + 2 * 2048 + 3 * 28672)
    assert row.predicted == pytest.approx(resident + 2 * 6 * 4096 * per_token / GIB, rel=0.07)
    assert row.ratio == pytest.approx(1, abs=CLOSE)
    assert row.simulator_ratio == pytest.approx(66.44 / 66.55)


def test_a_row_is_the_answer_of_the_command(found):
    """Of all phases, the largest: without a fused optimizer that would be its step."""
    (row,) = [one for one in found if one.reading.gib == 52.89]
    settings = row.source.settings | row.reading.settings
    of_run = {name: settings.pop(name) for name in RunConfig.model_fields if name in settings}
    model = mb.model(row.reading.base, **settings)
    assert row.predicted == model.memory(of_run).totals()["peak_training_bytes"] / GIB
    not_fused = (
        model.memory(of_run | {"fused": False, "foreach": False}).totals()["peak_training_bytes"]
        / GIB
    )
    assert not_fused > 1.25 * row.reading.gib
    assert {one.source.title: one.source.settings.get("fused", False) for one in found} == {
        "Megatron-LM on 8 B200, by SimuMax": True, "torchtitan on 8 to 512 H100 with 96 GB": False,
        "nanotron on 8 to 64 GPUs, a Llama of 1.1B parameters": True,
        "torchtitan on 32 and 64 H100 with 96 GB, Qwen 3 32B": True,
    }  # fmt: skip


def test_six_more_sequences_of_nanotron_by_hand(found):
    """What each of two tensor-parallel devices saves of them, in both readings and predictions."""
    two, eight = (
        next(row for row in found if row.reading.read_at.endswith(f"dp-32_tp-2_pp-1_mbz-{n}"))
        for n in (2, 8)
    )
    # Numbers of bfloat16 per token and layer: all of 2 inputs of products; half of 2 inputs of
    # norms, of queries, keys and values, two of them rotated, of the result twice, of gate, up,
    # SiLU and product.
    per_layer = 2 * 2048 + (2 * 2048 + 5 * 2048 + 2 * 2048 + 4 * 4096) // 2
    # Of the logits: softmax in float32, themselves and their gradient in bfloat16.
    more = 6 * 4096 * (24 * 2 * per_layer + (4 + 2 + 2) * 50258 // 2) / GIB
    assert eight.reading.gib - two.reading.gib == pytest.approx(more, rel=0.01)
    assert two.predicted is not None
    assert eight.predicted is not None
    assert eight.predicted - two.predicted == pytest.approx(more, rel=0.01)


def test_a_mistake_in_the_file_is_one_message(tmp_path):
    path = tmp_path / "readings.yaml"
    path.write_text("sources: {}\nreadings: [{base: a, source: b, gib: 1.0, settings: {}}]\n")
    with pytest.raises(InputError, match="readings"):
        gpu_readings(path)


def test_the_worst_ratio_of_the_margins_is_above_that_of_all_readings(found):
    """tests/models/test_recorded_gpu.py has the reading that it is from."""
    assert memory_margins().worst_ratio.value >= max(1 / row.ratio for row in found if row.ratio)
