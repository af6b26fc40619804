"""What a device holds at its peak, by kind: against the quantities that count each kind alone, and
against hand-worked numbers.
"""

import pytest
from helpers.divided import LLAMA, SMALL

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.parallel.rank import of_rank

GPT, TOKENS = Decoder(**SMALL), {"batch": 4, "length": 32}
RUNS = {
    "shards": {"data_parallel": 3, "zero": 3},
    "shards that stay gathered": {"data_parallel": 3, "zero": 2},
    "shards of single precision": {
        "data_parallel": 2, "zero": 3, "dtype": "bfloat16", "master_weights": True,
        "reduce_dtype": "float32",
    },
    "tensor parallel": {"tensor_parallel": 2, "sequence_parallel": True},
    "shards of parts": {"data_parallel": 2, "zero": 3, "tensor_parallel": 2},
    "stages": {"pipeline_parallel": 3, "pipeline_schedule": "1f1b", "n_microbatch": 4},
    "buckets": {"data_parallel": 2, "gradient_buckets": "copied"},
    "states": {
        "data_parallel": 2, "zero": 1, "dtype": "bfloat16", "master_weights": True,
        "gradient_casts": "accumulated",
    },
    "recomputed": {"data_parallel": 2, "zero": 3, "recompute": "full"},
}  # fmt: skip
QUANTITIES = {"bytes_at_peak", "gradient_bytes", "activation_bytes"}


def held(a: Decoder, **run) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Bytes of one device at its peak, by kind, and all that was measured."""
    _, values = of_rank(a, RunConfig(**TOKENS | run), QUANTITIES)
    found: dict[str, int] = {}
    for name, n_bytes in values["bytes_at_peak"].items():
        kind = name.partition(".")[0]
        found[kind] = found.get(kind, 0) + n_bytes
    return found, values


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("shape", [{}, LLAMA], ids=["GPT-2", "Llama"])
def test_kinds_are_the_peak_and_what_is_counted_alone(name, shape):
    a = Decoder(**SMALL | shape)
    found, values = held(a, **RUNS[name])
    assert sum(found.values()) == max(values["peak_training_bytes"].values())
    assert found["parameters"] == sum(values["parameter_bytes"].values())
    assert found["optimizer_states"] == sum(values["optimizer_bytes"].values())
    assert found.get("activations", 0) <= sum(values["activation_bytes"].values())


def test_a_stage_holds_all_that_it_will_receive():
    """Two buffers for each of four microbatches, one sequence of 32 tokens of 36 float32 each."""
    run = RUNS["stages"] | {"pipeline_rank": "second"}
    found, _ = held(GPT, **run)
    assert found["received_states"] == 2 * 4 * 32 * 36 * 4
    found, _ = held(GPT, **run | {"pipeline_rank": "last"})
    assert found["received_states"] == 4 * 32 * 36 * 4


def test_buckets_are_as_large_as_all_gradients():
    found, values = held(GPT, **RUNS["buckets"])
    assert found["communication_buffers"] == sum(values["gradient_bytes"].values())
    found, _ = held(GPT, **RUNS["buckets"] | {"gradient_buckets": "views"})
    assert "communication_buffers" not in found


def test_the_buffer_into_which_a_head_gathers_stays():
    """Megatron-Core gathers 4 sequences of 32 tokens of 36 bfloat16 each for the head, and keeps
    the buffer.
    """
    a = Decoder(**SMALL | LLAMA)
    run = RUNS["tensor parallel"] | {
        "dtype": "bfloat16", "gathered_states": "again", "projections": "packed",
        "gate_and_up": "packed",
    }  # fmt: skip
    found, _ = held(a, **run)
    assert found["communication_buffers"] >= 2 * 4 * 32 * 36
    usual, _ = held(a, **run | {"gathered_states": "saved"})
    assert usual.get("communication_buffers", 0) < 2 * 4 * 32 * 36


def test_what_is_gathered_at_the_peak_by_hand():
    """The peak of a model with one large, tied matrix is where its two gradients are added up. It
    is gathered then, with positions and the final norm; the input of the last layer's reduction is
    there until the next one.
    """
    a = Decoder(**SMALL | {"n_vocab": 100_000})
    found, _ = held(a, data_parallel=4, zero=3, batch=1, length=2)
    matrix = 4 * 100_000 * 36
    rest = matrix + 4 * (64 + 1) * 36
    layer = 4 * (4 * 64 * 36 + 2 * 36 * 100 + 2 * 36)
    assert found["parameters"] == (rest + 3 * layer) / 4
    assert found["gathered_parameters"] == rest
    assert found["communication_buffers"] == layer
    assert found["gradients"] == rest + 3 * layer / 4
    assert 2 * matrix < found["temporary"] < 2.01 * matrix
