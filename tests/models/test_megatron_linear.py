"""Products as Megatron-Core computes them: gradients added to a buffer, states gathered again."""

import pytest
import torch
from helpers.devices import measured, programmed
from helpers.divided import LLAMA, SMALL
from helpers.training import without_zeros
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.step.train import train
from modelbudget.modules.megatron_linear import Linear
from modelbudget.operations.tape import running_on
from modelbudget.quantities.tape_of_run import make_model, tape_of

BUFFER = {"dtype": "bfloat16", "master_weights": True, "gradient_casts": "accumulated"}
FUSED = BUFFER | {"gradient_accumulation_fusion": True}
PACKED = {"projections": "copied", "gate_and_up": "packed", "activation_kernel": "fused_gate"}
AGAIN = PACKED | {"sequence_parallel": True, "gathered_states": "again"}
OWN_ROWS = {"embedding_gradient": "own_rows"}
SWIGLU = SMALL | LLAMA | {"activation": "silu", "n_head": 8}
SHAPES = {
    "SwiGLU": SWIGLU,
    "large layers": SWIGLU | {"d_ff": 900, "n_vocab": 32, "n_layer": 5},
    "in parallel": SWIGLU | {"parallel": True},
}
BIASED = SMALL | dict.fromkeys(["query_bias", "key_bias", "value_bias", "up_bias"], True)
ALONE = SHAPES | {
    "tied, with biases": BIASED | {"output_bias": True, "down_bias": True, "head_bias": True},
    "equal matrices": SWIGLU | {"d_ff": 36, "n_kv_head": 8, "d_model": 128},
    "a gate": SWIGLU | {"attention_gate": True},
}
RUNS = (
    {"batch": 2, "length": 24},
    {"batch": 2, "length": 8, "recompute": "full"},
    {"batch": 1, "length": 64, "recompute": "selective", "loss_kernel": "in_place"},
)


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("packed", [{}, PACKED | {"projections": "packed"}])
def test_gradients_that_products_add_to_a_buffer(name, packed):
    a = Decoder.model_validate(ALONE[name])
    if packed and not a.gated:
        packed = {"projections": "packed"}
    for given in RUNS:
        run = RunConfig.model_validate(FUSED | packed | given)
        names = {"peak_training_bytes", "activation_bytes", "flops_backward", "gradient_bytes"}
        found = train(build(a, "meta", run.dtype), run, names)
        program = programmed(a, run)
        for quantity in names:
            assert program[quantity] == without_zeros(found[quantity]), (given, quantity)


def without_values(settings: dict, run: dict) -> int:
    """Return the bytes of what autograd gets in place of gradients."""
    a = Decoder.model_validate(settings)
    with running_on(tape_of(RunConfig.model_validate(run), lists_allocations=False)) as tape:
        make_model(tape, a.program(), a, RunConfig.model_validate(run))
        return sum(tensor.storage.n_bytes for tensor in tape.without_values)


def test_one_tensor_for_each_shape_stays_by_hand():
    run = FUSED | {"length": 8}
    attention, mlp = 36 * 8 * 16, 36 * 100  # query and output, keys and values; gate and up, down
    expected = 2 * attention + 36 * 4 * 16 + 2 * mlp + 36 * 1004
    assert without_values(SWIGLU, run) == 2 * expected
    joined = 36 * (8 + 2 * 4) * 16 + attention + 3 * mlp + 36 * 1004
    assert without_values(SWIGLU, run | PACKED) == 2 * joined
    assert without_values(SWIGLU, BUFFER | {"length": 8}) == 0
    assert without_values(SWIGLU | {"d_ff": 1004}, run) == 2 * (expected - 2 * mlp + 36 * 1004)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SwiGLU", FUSED | AGAIN | OWN_ROWS),
        ("SwiGLU", BUFFER | AGAIN),
        ("large layers", FUSED | PACKED | OWN_ROWS),
        ("large layers", {"dtype": "bfloat16"} | AGAIN | OWN_ROWS),
        ("in parallel", FUSED | AGAIN | OWN_ROWS),
    ],
)
def test_devices_that_divide_a_model(name, settings):
    a = Decoder.model_validate(SHAPES[name])
    for given in (
        {"batch": 1, "length": 32, "tensor_parallel": 4, "attention_kernel": "flash"},
        {"batch": 4, "length": 16, "tensor_parallel": 2, "loss_kernel": "in_place"},
        {"batch": 2, "length": 8, "tensor_parallel": 2, "recompute": "full"},
    ):
        run = RunConfig.model_validate(settings | given)
        assert programmed(a, run) == measured(a, run), given


@pytest.mark.parametrize("stages", [{}, {"virtual_stages": 2}])
@pytest.mark.parametrize("rank", ["first", "second", "last"])
def test_a_stage_of_such_devices(rank, stages):
    """Tables of RoPE are of the whole length, tensors without values of all stages of a device."""
    a = Decoder.model_validate(SWIGLU | {"n_layer": 6})
    schedule = "interleaved_1f1b" if stages else "1f1b"
    stage = stages | {"pipeline_parallel": 3, "pipeline_schedule": schedule, "pipeline_rank": rank}
    given = {"batch": 6, "length": 16, "n_microbatch": 6, "tensor_parallel": 2}
    given |= {"loss_kernel": "in_place", "rope_tables": "model"}
    run = RunConfig.model_validate(FUSED | AGAIN | OWN_ROWS | stage | given)
    assert programmed(a, run) == measured(a, run)


def test_what_is_saved_by_hand():
    """Of the states that a device gathers, a quarter is saved, for attention, MLP and head."""
    a = Decoder.model_validate(SWIGLU)
    run = RunConfig.model_validate(
        {"batch": 2, "length": 16, "tensor_parallel": 4, "dtype": "bfloat16"} | AGAIN
    )
    saved, again = (
        programmed(a, run.model_copy(update={"gathered_states": one}))["activation_bytes"]
        for one in ("saved", "again")
    )
    names = "layer.attention.query_key_value", "layer.mlp.gate_up", "head"
    for name in names:
        assert again[name] * 4 == saved[name]
    assert {name for name in saved if saved[name] != again[name]} == {*names}
    run = run.model_copy(update=OWN_ROWS)
    tokens = 2 * 16
    assert programmed(a, run)["activation_bytes"]["embedding.token"] == tokens * (8 + 1)


class Halves:
    """Two devices: this one has the first half of the length, and `other` is the second."""

    def __init__(self, other: torch.Tensor):
        self.other = other

    def gather(self, x):
        return torch.cat((x, self.other), dim=1)

    def sum(self, gradient):
        return gradient.chunk(2, dim=1)[0]


def test_gradients_of_states_that_are_gathered_again_are_torchs():
    torch.manual_seed(0)
    shapes = (2, 3, 5), (2, 3, 5), (7, 5), (7,)
    x, other, weight, bias = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    leaves = [one.requires_grad_() for one in (x, weight, bias)]
    ours = Linear.apply(x, weight, bias, weight, Halves(other))
    torchs = F.linear(torch.cat((x, other), dim=1), weight, bias)
    assert torch.equal(ours, torchs)
    weights = torch.randn(torchs.shape, dtype=torch.float64)
    found, expected = (torch.autograd.grad((y * weights).sum(), leaves) for y in (ours, torchs))
    assert all(map(torch.allclose, found, expected))


REFUSED = {
    "gathered_states: again, gate_and_up: packed": "gathered_states = 'again': not known yet with "
    "projections: separate; allowed: gathered_states: saved",
    "gathered_states: again, projections: packed": "not known yet with gate_and_up: separate",
    "tied: true, gradient_accumulation_fusion: true": "not known yet with tensor_parallel = 2, "
    "tied = true; allowed: gradient_accumulation_fusion: false",
    "embedding_gradient: own_rows, zero: 3, data_parallel: 2": "embedding_gradient = 'own_rows': "
    "not known yet with zero: 3; allowed: embedding_gradient: whole",
}


@pytest.mark.parametrize("settings", REFUSED)
def test_what_is_not_known_is_refused(sweep, settings):
    given = "tensor_parallel: 2, sequence_parallel: true, dtype: bfloat16, length: 16"
    if "zero" not in settings:
        given += ", master_weights: true, gradient_casts: accumulated"
    with pytest.raises(Exception, match="not known yet") as error:
        sweep(
            f"base: llama-3-8b\nfixed: {{{given}, {settings}}}\npoints: [{{}}]\n"
            "measure: {quantities: [peak_training_bytes]}\n"
        )
    assert REFUSED[settings] in str(error.value)
