"""Models that are known by name alone: their sizes against the checkpoints, and their names."""

import pytest
import torch

import modelbudget as mb
from modelbudget.api.find import CATALOGUE
from modelbudget.catalogue.named_models import RELEASED, Catalogue, all_models
from modelbudget.huggingface.construct import config_object, construct
from modelbudget.huggingface.known_difference import known_difference
from modelbudget.sweeps.class_config import class_config

MODELS = {b.name: b for b in Catalogue(CATALOGUE.with_name(RELEASED)).bases.values() if b.model}


@pytest.mark.parametrize("name", MODELS)
def test_as_many_parameters_as_in_the_checkpoint(name):
    """Only this sees a wrong size of a model that no sweep has."""
    assert mb.model(name).predict("parameters").total == MODELS[name].model.exact


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_as_many_parameters_as_in_the_class(name):
    base, architecture = MODELS[name], mb.model(name).architecture
    config = class_config(base.transformers, architecture, base.config)
    with torch.device("meta"):
        module = construct(base.transformers, config_object(base.transformers, config))
    difference = known_difference(base.transformers, architecture)  # buffers, as routers' biases
    in_class = sum(p.numel() for p in module.parameters())
    assert in_class - (difference.parameters if difference else 0) == base.model.exact


def test_names_are_of_one_model_each():
    """A name in both folders, or twice in one, would stand for the first alone."""
    models = all_models(CATALOGUE)
    names = [name.casefold() for base in models for name in (base.name, *base.model.same_shape)]
    assert len(names) == len(set(names)) > 400


@pytest.mark.parametrize(
    ("written", "label"),
    [
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "TinyLlama 1.1B"),
        ("tinyllama-1.1b-chat-v1.0", "TinyLlama 1.1B"),
        ("tinyllama", "TinyLlama 1.1B"),
        ("falcon3-7b", "Falcon 3 7B"),
        ("codellama-7b", "codellama-7b (shape of Code Llama 7B)"),
        ("TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF"),
        ("intfloat/e5-large-v2", "intfloat/e5-large-v2 (shape of BERT large without heads)"),
        ("google/flan-t5-xl", "google/flan-t5-xl (shape of T5 v1.1 xl)"),
    ],
)
def test_names_are_found_as_people_write_them(written, label):
    assert mb.model(written).label.startswith(label)


def test_they_are_a_base_of_a_sweep_and_no_model_of_the_list():
    """The list of models that the page shows is that of configs/models alone."""
    catalogue = Catalogue(CATALOGUE)
    assert catalogue["01-ai/Yi-34B"].label == "Yi 34B"
    assert not {*MODELS} & {*catalogue.bases}
