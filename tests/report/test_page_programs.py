"""Peaks of inference of the page's calculator, against runs of the program with numbers."""

from contextlib import suppress
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import total
from modelbudget.catalogue.implementations import TRANSFORMERS, implementations
from modelbudget.families.decoder import Decoder
from modelbudget.predict.by_program import terms_by_program
from modelbudget.report.page_programs import OF_PARAMETERS, Programs, beyond_caches, training_peak
from modelbudget.sweeps.derive import named_architecture

MODELS = {
    "gpt-2-124m": "math", "palm-8b": "flash", "llama-3-8b": "flash", "stablelm-2-12b": "math",
    "gemma-3-1b": "math", "gpt-oss-20b": "math", "mixtral-8x7b": "flash", "deepseek-v3": "math",
    "qwen3-next-80b-a3b": "flash", "mistral-7b-v0.1": "math",
}  # fmt: skip
RUNS = [(1, 1024), (3, 640), (2, 9024)]
SIZES = ["n_layer", "d_model", "n_vocab", "d_ff", "d_head", "n_head", "d_expert"]


def beyond(programs: Programs, a: Decoder, run: RunConfig) -> tuple[int, int]:
    numbers = {name: int(v) if isinstance(v, bool) else v for name, v in dict(a).items()}
    a_and_run = SimpleNamespace(**numbers), SimpleNamespace(**dict(run))
    sizes, holds = programs.largest(beyond_caches, *a_and_run)
    return sizes.get("model", 0), holds


def expected(a: Decoder, run: RunConfig) -> int:
    peaks = terms_by_program("peak_inference_bytes", a, run) or {}
    caches = terms_by_program("cache_bytes", a, run) or {}
    held = total(Decoder.parameter_bytes(a, run)) + total(caches)
    return max(term.total for term in peaks.values()) - held


def with_other_parameters(a: Decoder) -> Decoder:
    """Return a model with the other value of each switch that only parameters depend on."""
    a = a.model_copy(update={"vocab_multiple": 77})
    for name in sorted(OF_PARAMETERS):
        with suppress(ValidationError):
            a = Decoder.model_validate(dict(a) | {name: not getattr(a, name)})
    return a


@pytest.mark.parametrize(("name", "kernel"), MODELS.items())
def test_a_peak_is_that_of_a_run_of_the_whole_model(catalogue, name, kernel):
    """The regimes are of models a few layers deep, and leave out fields of parameters alone.

    Only this test sees a layer, or one of those fields, on which the peak depends after all.
    """
    a = named_architecture(catalogue.bases[name])
    programs = Programs({tuple((n, getattr(a, n)) for n in Decoder.categorical()): (a,)})
    n_known = 0
    for batch, length in RUNS:
        settings = {"batch": batch, "length": length, "attention_kernel": kernel}
        run = RunConfig(dtype="bfloat16", **settings)
        sizes = {size: 2 * getattr(a, size) for size in SIZES if batch > 1}
        larger = a.model_copy(update=sizes)
        if batch == 2:
            larger = with_other_parameters(larger)
        if a.position == "learned" and length > a.n_ctx:
            continue
        peak, holds = beyond(programs, larger, run)
        n_known += holds
        assert not holds or peak == expected(larger, run), (batch, length)
    assert n_known >= 2


def test_a_regime_of_windows_alone_depends_on_the_fields_of_attention(catalogue):
    """Its peak, which is right without sinks, was given with them."""
    a = named_architecture(catalogue.bases["mistral-7b-v0.1"])
    programs = Programs({tuple((n, getattr(a, n)) for n in Decoder.categorical()): (a,)})
    run = RunConfig(dtype="bfloat16", attention_kernel="math", length=640)
    assert beyond(programs, a, run) == (expected(a, run), 1)
    _, holds = beyond(programs, a.model_copy(update={"sinks": True}), run)
    assert holds == 0


@pytest.mark.parametrize(
    ("model", "batch", "length"),
    [
        ("olmo-2-7b", 1, 8192), ("olmo-2-7b", 4, 2048), ("olmo-2-7b", 16, 8192),
        ("mixtral-8x7b", 8, 8192),
    ],
)  # fmt: skip
def test_training_of_a_class_is_known_with_many_tokens(catalogue, model, batch, length):
    """It was not with more than an embedding sums unsorted, 3,072, nor with more than its rows."""
    a, name = named_architecture(catalogue.bases[model]), catalogue.bases[model].transformers
    of_class = implementations()[TRANSFORMERS].of_class(name)
    settings = {"dtype": "bfloat16", "attention_kernel": "flash", "foreach": True}
    run = RunConfig(**{**settings, **of_class, "batch": batch, "length": length})
    numbers = {name: int(v) if isinstance(v, bool) else v for name, v in dict(a).items()}
    a_and_run = SimpleNamespace(**numbers), SimpleNamespace(**dict(run))
    sizes, holds = Programs({name: (a,)}).largest(training_peak, *a_and_run, name)
    peaks = terms_by_program("peak_training_bytes", a, run)
    assert (sizes["model"], holds) == (max(term.total for term in peaks.values()), 1)
