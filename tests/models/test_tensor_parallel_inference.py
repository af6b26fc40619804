"""Inference of one of several devices that compute one model: formulas against torch's own
`parallelize_module` on a fake process group, and that against processes that communicate.
"""

from itertools import cycle

import numpy
import pytest
import torch
from helpers.divided import LLAMA, SHAPES, SMALL
from helpers.gloo import of_all_ranks
from helpers.inference import predicted_inference
from helpers.training import without_zeros

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families.decoder import Decoder
from modelbudget.measurement.build import build
from modelbudget.measurement.parallel import divided_model
from modelbudget.measurement.parallel.rank import distribute, mesh_of, of_rank
from modelbudget.modules.cache import caching
from modelbudget.modules.initialise import initialise
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.quantity_names import OF_INFERENCE

COPIED = LLAMA | {"n_head": 8, "n_kv_head": 2, "inner_norm": True}
"""With four devices, two have the same head of keys and values."""
OF_HEADS = LLAMA | {"qk_norm": "shared", "sinks": True, "attention_gate": True}
OF_HEADS |= {"gate_per_head": True}
EXPERTS = {"mlps": "moe mlp", "n_expert": 4, "n_expert_per_token": 2, "d_expert": 24, "d_shared": 8}
OF_ALL_HEADS = EXPERTS | {"qk_norm": "joint", "d_emb": 12}
"""Heads that are gathered for a norm: only the logits show that each has its own back.

And an embedding whose projections are on each device.
"""
RUNS = [
    {"length": 1},
    {"batch": 3, "length": 32},
    {"batch": 2, "length": 64, "dtype": "bfloat16", "attention_kernel": "flash"},
    {"batch": 2, "length": 16, "attention_kernel": "efficient", "rope_tables": "model"},
    {"batch": 4, "length": 16, "dtype": "bfloat16", "gate_and_up": "packed"},
    {"batch": 2, "length": 32, "backend": "cpu", "norm_kernel": "written_out"},
]


def check(a: Decoder, run: RunConfig) -> None:
    """Compare all quantities of inference with what is measured; flash has no window here."""
    _, values = of_rank(a, run, OF_INFERENCE)
    is_masked = a.window and run.attention_kernel == "flash"
    unknown = {"peak_inference_bytes", "flops_decode"} if is_masked else set()
    for quantity in {*OF_INFERENCE, "parameter_bytes"} - unknown:
        predicted = without_zeros(predicted_inference(a, run, quantity))
        assert predicted == without_zeros(values[quantity]), (quantity, run)


@pytest.mark.parametrize("name", [*SHAPES, "copied", "of heads", "experts"])
def test_a_devices_share_of_inference_is_predicted(name):
    """Logits of the whole vocabulary, which each gathers, are most of a small model's peak."""
    others = {
        "copied": COPIED,
        "of heads": OF_HEADS | {"sinks": False},
        "experts": LLAMA | OF_ALL_HEADS,
    }
    shape = SMALL | (SHAPES | others)[name]
    sizes = cycle([{}, {"n_vocab": 8}])
    for settings, devices in zip(RUNS, cycle([4, 2, 4]), strict=False):
        a = Decoder(**shape | next(sizes))
        if a.gated or "gate_and_up" not in settings:
            check(a, RunConfig(tensor_parallel=devices, **settings))


@pytest.mark.parametrize("devices", [8, 16])
def test_llama_on_several_devices(catalogue, devices):
    a = named_architecture(catalogue["llama-3-8b"]).model_copy(update={"n_layer": 2})
    run = RunConfig(dtype="bfloat16", attention_kernel="flash", length=512)
    of_one = run.model_copy(update={"tensor_parallel": devices})
    check(a, of_one)
    # 2 bytes of the keys and values of one head in each layer: Llama 3 has 8 of them.
    assert [term.total for term in a.cache_bytes(a, of_one).values() if term.total] == [
        2 * 512 * 2 * 128 * 2
    ]


def _decoded(a: Decoder, run: RunConfig) -> numpy.ndarray:
    """Return the logits of the prompt's last token, computed with the cache of the others."""
    torch.manual_seed(0)
    model = build(a, "cpu", run.dtype)
    initialise(model)
    tokens = torch.randint(a.n_vocab, (run.batch, run.length))
    is_divided = run.tensor_parallel > 1
    if is_divided:
        model = distribute(model, run, mesh_of(run))
        divided_model.gather_logits(model)
    with caching(model.eval(), run.batch, run.length):
        model(tokens[:, :-1])
        logits = model(tokens[:, -1:])
    return (logits.to_local() if is_divided else logits).numpy()


@pytest.mark.parametrize("shape", [OF_HEADS | OF_ALL_HEADS, COPIED], ids=["divided", "copied"])
def test_processes_that_communicate_decode_what_one_does(tmp_path, shape):
    a = Decoder(**SMALL | shape | {"n_vocab": 40})
    run = RunConfig(batch=2, length=7, dtype="float64", backend="cpu")
    expected = _decoded(a, run)
    several = run.model_copy(update={"tensor_parallel": 4})
    for logits in of_all_ranks(_decoded, a, several, tmp_path):
        numpy.testing.assert_allclose(logits, expected, rtol=1e-9)


REFUSED = {
    "base: gpt-2-124m\nfixed: {tensor_parallel: 4}": "n_vocab = 50,257: tensor_parallel = 4 "
    "devices do not divide its 50,257 rows; allowed: a vocab_multiple that they divide",
    "base: llama-3-8b\nfixed: {tensor_parallel: 6}": "n_head = 32: tensor_parallel = 6 devices do "
    "not divide it",
    "base: llama-3-8b\nfixed: {tensor_parallel: 2, sequence_parallel: true}": "sequence_parallel = "
    "true: cache_bytes is not known of parts of the length; allowed: false",
}


@pytest.mark.parametrize("text", REFUSED)
def test_inference_that_devices_cannot_share_is_refused(sweep, text):
    with pytest.raises(Exception, match="parallel") as error:
        sweep(f"{text}\npoints: [{{}}]\nmeasure: {{quantities: [cache_bytes]}}\n")
    assert REFUSED[text] in str(error.value)


def test_copies_of_heads_are_not_trained(sweep):
    text = "base: llama-3-8b\nfixed: {tensor_parallel: 16}\npoints: [{}]\n"
    sweep(f"{text}measure: {{quantities: [parameters, parameter_bytes]}}\n")
    with pytest.raises(Exception, match="parallel") as error:
        sweep(f"{text}measure: {{quantities: [gradient_bytes]}}\n")
    assert "n_kv_head = 8: tensor_parallel = 16: gradient_bytes is not known where several" in str(
        error.value
    )
    a = Decoder(**SMALL | COPIED)
    run = RunConfig(length=8, tensor_parallel=4)
    assert not a.has_formula_for("peak_training_bytes", a, run)
