"""Programs of published models against the formulas, which were written without programs."""

from collections import Counter

import pytest
from helpers.catalogue import CATALOGUE

from modelbudget.architecture.run_config import RunConfig
from modelbudget.components.decoder.decoder_program import program
from modelbudget.families.decoder import Decoder
from modelbudget.operations.tape import Tape, running_on
from modelbudget.predict.prediction_or_reason import predicted
from modelbudget.quantities.inference_step import inference
from modelbudget.quantities.training_step import training_step
from modelbudget.sweeps.derive import named_architecture

BASES = [base for base in CATALOGUE.bases.values() if base.model]
KERNELS = {
    "gpt-2-124m": "flash",
    "llama-3-8b": "flash",
    "mixtral-8x7b": "flash",
    "palm-540b": "flash",
    "deepseek-v2-lite": "efficient",  # its values are not as wide as its keys
    "gemma-2-9b": "math",  # has windows
}


def without_zeros(values) -> dict:
    return {name: n for name, n in values.items() if n}


def totals(quantity: str, a, run: RunConfig) -> dict:
    return without_zeros({name: x.total for name, x in predicted(quantity, a, run).items()})


def test_parameters_of_all_decoders_are_those_of_the_formulas():
    architectures = {base.name: named_architecture(base) for base in BASES}
    decoders = {name: a for name, a in architectures.items() if type(a) is Decoder}
    assert len(decoders) > 100
    for name, a in decoders.items():
        with running_on(Tape()) as tape:
            program(a, RunConfig(batch=1, length=1))
        n_parameter: Counter[str] = Counter()
        for parameter in tape.parameters:
            n_parameter[parameter.name] += parameter.numel()
        formula = {component: term.total for component, term in a.parameters(a).items()}
        assert n_parameter == without_zeros(formula), name


@pytest.mark.parametrize("name", KERNELS)
def test_quantities_of_a_step_are_those_of_the_formulas(name):
    a = named_architecture(CATALOGUE[name])
    run = RunConfig.model_validate(
        {"batch": 2, "length": 5000 if name == "gemma-2-9b" else 1024, "dtype": "bfloat16"}
        | {"attention_kernel": KERNELS[name]}
    )
    step, caches = training_step(program, a, run), inference(program, a, run).caches
    by_quantity = {
        "flops_forward": step.flops_forward,
        "flops_backward": step.flops_backward,
        "activation_bytes": step.saved,
        "peak_training_bytes": step.peaks,
        "cache_bytes": caches,
    }
    for quantity, values in by_quantity.items():
        assert without_zeros(values) == totals(quantity, a, run), quantity
