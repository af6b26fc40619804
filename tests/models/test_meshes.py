"""Shards of what devices compute together (FSDP2 × tensor parallelism): formulas against torch's
own `parallelize_module` and `fully_shard` on a fake process group, and that against processes that
communicate.
"""

from itertools import cycle

import pytest
from helpers.devices import compared, measured, predicted
from helpers.divided import RUNS, SHAPES, SMALL
from helpers.gloo import steps_of_all_ranks
from helpers.tiers import some

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.sweeps.derive import named_architecture

MIXED = {"dtype": "bfloat16", "master_weights": True, "reduce_dtype": "float32"}
ALL_RUNS = [
    *(one for one in RUNS if one["length"] > 4),
    {"batch": 1, "length": 4},
    MIXED | {"batch": 2, "length": 16, "recompute": "full"},
    MIXED | {"batch": 1, "length": 8},
]
# Data-parallel devices, of which 3, 5 and 7 do not divide all rows; devices of one model.
MESHES = (
    {"data_parallel": 3, "tensor_parallel": 2},
    {"data_parallel": 2, "tensor_parallel": 4, "sequence_parallel": True},
    {"data_parallel": 7, "tensor_parallel": 4, "data_rank": "last"},
    {"data_parallel": 5, "tensor_parallel": 2, "sequence_parallel": True, "data_rank": "last"},
)


@pytest.mark.parametrize("name", SHAPES)
def test_a_devices_shard_of_its_share_is_predicted(name):
    """Each shape in a third of the runs, and each run with a third of the shapes."""
    a, i = Decoder(**SMALL | SHAPES[name]), list(SHAPES).index(name)
    meshes = cycle(MESHES[i % 4 :] + MESHES[: i % 4])
    for settings, mesh in zip(some(ALL_RUNS[i % 3 :: 3], 2, i), meshes, strict=False):
        run = RunConfig(zero=3, **mesh, **settings)
        formulas, values = predicted(a, run), measured(a, run)
        assert len(formulas) >= 5
        assert formulas == {quantity: values[quantity] for quantity in formulas}, run


def test_palm_on_6144_devices(catalogue):
    """Three layers, without sequence parallelism and with it, where 12 devices divide 2,064."""
    palm = named_architecture(catalogue["palm-540b"])
    of_12 = {"tensor_parallel": 12, "sequence_parallel": True, "length": 2064, "batch": 4}
    for mesh, sizes in (
        ({"data_parallel": 384, "tensor_parallel": 16, "length": 2048}, {"n_layer": 3}),
        ({"data_parallel": 512} | of_12, {"vocab_multiple": 12, "n_layer": 3}),
    ):
        settings = MIXED | {"attention_kernel": "flash", "recompute": "full", "zero": 3}
        a, run = palm.model_copy(update=sizes), RunConfig(**settings, **mesh)
        assert predicted(a, run) == measured(a, run)


@pytest.mark.parametrize("zero", [0, 3])
def test_the_gradient_of_a_repeated_layer_is_gathered_first(zero):
    """Before the layer runs forward again, where attention has the peak."""
    a = Decoder(**SMALL | {"d_ff": 4, "n_vocab": 32, "d_model": 4})
    run = RunConfig(batch=2, length=8, recompute="full", tensor_parallel=4, sequence_parallel=True)
    run = run.model_copy(update={"zero": zero, "data_parallel": 2})
    assert predicted(a, run) == measured(a, run)


def test_a_layers_last_gradient_is_held_while_all_are_added_up():
    a = Decoder(**SMALL | SHAPES["GPT-2"] | {"n_layer": 2, "d_ff": 400, "n_vocab": 32})
    run = RunConfig(length=8, dtype="bfloat16", reduce_dtype="float32", zero=3, data_parallel=2)
    assert predicted(a, run) == measured(a, run)


@pytest.mark.parametrize(("sequence", "norm"), [(False, "layernorm"), (True, "rmsnorm")])
def test_gradients_computed_in_part_are_summed_before_parameters_are_freed(sequence, norm):
    """Those of keys and values of a single head, and of norms with sequence parallelism."""
    sizes = {"n_vocab": 4, "d_model": 16, "d_head": 62, "d_ff": 8, "n_kv_head": 1, "norm": norm}
    a = Decoder(**SMALL | sizes)
    settings = {
        "length": 4,
        "attention_kernel": "efficient",
        "recompute": "full",
        "zero": 3,
        "data_parallel": 2,
    }
    run = RunConfig(tensor_parallel=2, sequence_parallel=sequence, **settings)
    assert predicted(a, run) == measured(a, run)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [False, True])
def test_four_processes_that_communicate_hold_the_same(tmp_path, sequence):
    a = Decoder(**SMALL | SHAPES["Llama"])
    run = RunConfig(
        batch=2, length=16, backend="cpu", data_parallel=2, zero=3, tensor_parallel=2,
        sequence_parallel=sequence,
    )  # fmt: skip
    ranks = steps_of_all_ranks(a, run, tmp_path)
    for i, found in enumerate(ranks):
        of_rank_ = run.model_copy(update={"data_rank": ("first", "last")[i // 2]})
        assert compared(found) == measured(a, of_rank_), i
