"""Adapters of which devices have shards, buckets or stages: programs against torch's own
`fully_shard`, DistributedDataParallel and pipelines, on a fake process group.

Frozen parameters are gathered too, and only here have no gradient: what is reduced is a part of a
group, and the first layer has no backward pass. Of quantised matrices the packed numbers are in
shards and the scales whole, which nothing else tests. The first stage of a pipeline trains all its
layers, and none before the first adapter has a backward pass; where the embedding's output requires
a gradient, that lives as long as the stage's output.
"""

import pytest
from helpers.devices import measured, predicted, programmed
from helpers.divided import LLAMA, SMALL
from helpers.training import without_zeros

import modelbudget as mb
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.common.errors import InputError
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.parallel.rank import of_rank
from modelbudget.predict.prediction_or_reason import why_not

LORA = {"batch": 2, "length": 8, "dtype": "bfloat16", "attention_kernel": "math"}
LORA |= {"adapter": "lora", "adapter_dtype": "dtype"}
WITH_SHARDS = (
    "lora", "rslora", "lora_fa", "dora", "loha", "ia3", "adalora", "hira", "delora", "hra", "road",
    "fourierft",
)  # fmt: skip
"""Adapters of which each layer has its own tensors."""
SHARDS = {"zero": 3, "data_parallel": 3}
STAGES = {"pipeline_parallel": 2, "pipeline_schedule": "1f1b", "n_microbatch": 4, "batch": 8}
TURNS = STAGES | {"pipeline_schedule": "interleaved_1f1b", "virtual_stages": 2}
EXPERTS = {"mlps": "moe", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 8}
SELECTED = EXPERTS | {"router_bias": "selection"}
RUNS = [
    {"zero": 2, "data_parallel": 7, "data_rank": "last"},
    SHARDS | {"recompute": "full"},
    SHARDS | {"recompute": "full", "input_gradient": True, "reduce_dtype": "float32"},
    SHARDS | {"loss_chunks": 4},
    SHARDS | {"adapter": "none", "trained": "attention norms"},
    SHARDS | {"adapter": "none", "trained": "all", "trained_from_layer": 1},
    {"data_parallel": 2, "gradient_buckets": "copied"},
    {"data_parallel": 2, "gradient_buckets": "views", "adapter_dtype": "float32"},
    *(SHARDS | {"adapter": name} for name in WITH_SHARDS),
    SHARDS | {"weights": "bnb-4bit"},
    SHARDS | {"weights": "bnb-4bit-double", "recompute": "full", "input_gradient": True},
    {"zero": 2, "data_parallel": 7, "data_rank": "last", "weights": "bnb-4bit-double"},
    SHARDS | {"weights": "bnb-4bit", "adapter": "lora_fa", "loss_chunks": 4},
    SHARDS | {"weights": "bnb-4bit-double", "adapter": "dora"},
    STAGES | {"adapter_targets": "query value", "adapter_dtype": "float32", "input_gradient": True},
    STAGES | {"weights": "bnb-4bit", "recompute": "full", "pipeline_rank": "last"},
    STAGES | SHARDS | {"pipeline_schedule": "gpipe", "adapter": "dora", "input_gradient": True},
    TURNS | {"adapter": "none", "trained": "attention norms"},
    STAGES | {"projections": "packed"},
    TURNS | {"zero": 2, "data_parallel": 2, "weights": "bnb-4bit-double"},
    EXPERTS | {"data_parallel": 2, "gradient_buckets": "views", "recompute": "full"},
    EXPERTS | TURNS | {"expert_kernel": "gathered", "adapter_dtype": "float32"},
    # DistributedDataParallel has no bucket for a bias that only selects experts.
    SELECTED
    | {"data_parallel": 2, "gradient_buckets": "views", "adapter": "none", "trained": "mlp"},
]


@pytest.mark.parametrize("settings", RUNS, ids=str)
def test_what_a_device_trains_of_a_model(settings):
    of_run = {name: value for name, value in settings.items() if name not in SELECTED}
    of_model = {name: value for name, value in settings.items() if name in SELECTED}
    n_layer = 4 if "pipeline_parallel" in settings else 3  # the first, the last and another
    a, run = Decoder(**SMALL | LLAMA | {"n_layer": n_layer} | of_model), RunConfig(**LORA | of_run)
    assert run_mistake(a, run) is None
    assert why_not("peak_training_bytes", a, run) is None
    assert programmed(a, run) == measured(a, run)


def test_quantised_shards_without_an_adapter_have_no_bytes_of_the_dtype():
    """Their closed formula counted shards of bfloat16."""
    run = RunConfig(length=8, dtype="bfloat16", weights="bnb-4bit", **SHARDS)
    assert why_not("parameter_bytes", Decoder(**SMALL | LLAMA), run)


def test_a_stage_of_quantised_weights_without_an_adapter():
    """Its bytes were measured before the weights were quantised."""
    a = Decoder(**SMALL | LLAMA | {"n_layer": 4})
    run = RunConfig(length=8, dtype="bfloat16", weights="bnb-4bit-double", **STAGES)
    _, values = of_rank(a, run, set())
    assert predicted(a, run)["parameter_bytes"] == without_zeros(values["parameter_bytes"])


@pytest.mark.parametrize("stored", [{"weights": "bnb-4bit"}, {"vocabulary_dtype": "float16"}])
def test_a_part_of_the_states_has_weights_in_the_dtype(stored):
    """Devices are measured with weights in the dtype, and had predicted bytes of others."""
    zero_1 = {"zero": 1, "data_parallel": 2, "dtype": "bfloat16", "master_weights": True}
    with pytest.raises(InputError, match="zero = 1: not known yet with"):
        RunConfig(**zero_1, gradient_casts="accumulated", **stored)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"adapter_dtype": "float32"}, "shards of bfloat16 are gathered"),
        ({"adapter": "vera"}, "not known yet with adapter: vera"),
        ({"modules_to_save": "head"}, "not known yet with zero or gradient_buckets"),
        (STAGES | {"modules_to_save": "head"}, "pipeline_schedule = '1f1b': not known yet with"),
        (STAGES | {"adapter": "none", "trained": "head"}, "some stages have no such part"),
        (
            {"weights": "bnb-8bit"},
            "weights: bnb-8bit; allowed: dtype or bnb-4bit or bnb-4bit-double",
        ),
        (
            {"weights": "bnb-4bit", "prepare_for_kbit_training": True, "autocast": "bfloat16"},
            "not known yet with",
        ),
    ],
)
def test_what_is_not_known_is_refused(settings, reason):
    with pytest.raises(InputError, match=reason):
        RunConfig(**LORA | SHARDS | settings)


@pytest.mark.parametrize(("division", "is_prepared"), [({}, True), (STAGES, False)])
def test_what_is_not_known_of_stages_is_not_their_default(division, is_prepared):
    _, run = mb.model("gpt-2-124m").with_run(LORA | division | {"weights": "bnb-4bit"})
    assert run.prepare_for_kbit_training == is_prepared
