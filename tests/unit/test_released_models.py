"""Models that are known by name alone: their sizes against the checkpoints, and their names."""

import pytest
import torch

import modelbudget as mb
from modelbudget.api.find import CATALOGUE
from modelbudget.api.measuring import measure_models
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import RELEASED, Catalogue, all_models
from modelbudget.huggingface.classes import known_difference
from modelbudget.huggingface.construct import config_object, construct
from modelbudget.modules.initialise import uninitialised
from modelbudget.sweeps.class_config import class_config

MODELS = {b.name: b for b in Catalogue(CATALOGUE.with_name(RELEASED)).bases.values() if b.model}


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    """Parameters of the models without a formula: one process builds all their classes."""
    architectures = {name: mb.model(name).architecture for name in MODELS}
    classes = {name: (a, RunConfig()) for name, a in architectures.items() if not a.has_formula}
    counted = measure_models([*classes.values()], ["parameters"])
    totals = (sum(of_class.values["parameters"].values()) for of_class in counted)
    return dict(zip(classes, totals, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_as_many_parameters_as_in_the_checkpoint(name, counts):
    """Only this sees a wrong size of a model that no sweep has."""
    total = counts[name] if name in counts else mb.model(name).predict("parameters").total
    assert total == MODELS[name].model.exact


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, base in MODELS.items() if base.transformers])
def test_as_many_parameters_as_in_the_class(name):
    base, architecture = MODELS[name], mb.model(name).architecture
    config = class_config(base.transformers, architecture, base.config)
    with torch.device("meta"), uninitialised():
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
        ("whisper-large-v3", "Whisper large v3"),
        ("deepseek-r1:7b", "deepseek-r1-7b (shape of Qwen 2.5 7B)"),
        ("embeddinggemma", "EmbeddingGemma 300M"),
        ("jamba", "Jamba-v0.1 (shape of Jamba Mini 1.5"),
        ("klue/bert-base", "KLUE-BERT base"),  # was BERT base, of 30,522 tokens
    ],
)
def test_names_are_found_as_people_write_them(written, label):
    assert mb.model(written).label.startswith(label)


@pytest.mark.parametrize(
    ("name", "n_ctx"),
    [
        ("Qwen/Qwen2.5-7B", 131072),
        ("Qwen/Qwen2.5-7B-Instruct", 32768),
        ("Qwen/Qwen2.5-72B-Instruct", 32768),
        ("Qwen/Qwen2.5-7B-Instruct-1M", 1010000),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 128000),
        ("Qwen/Qwen2.5-1.5B", 131072),
        ("Qwen/Qwen2.5-1.5B-Instruct", 32768),
        ("Qwen/Qwen2-7B", 131072),
        ("Qwen/Qwen2-7B-Instruct", 32768),
        ("Qwen/QwQ-32B", 40960),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 131072),
        ("deepseek-r1:8b", 131072),
        ("deepseek-r1:70b", 131072),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", 163840),
        ("zai-org/GLM-4.5", 131072),
        ("zai-org/GLM-4.6", 202752),
        ("zai-org/GLM-4.7", 202752),
        ("moonshotai/Kimi-K2-Instruct", 131072),
        ("moonshotai/Kimi-K2-Instruct-0905", 262144),
        ("MiniMaxAI/MiniMax-M2.5", 196608),
        ("MiniMaxAI/MiniMax-M2.7", 204800),
        ("CohereForAI/aya-expanse-32b", 8192),
        ("Qwen/QwQ-32B-Preview", 32768),
        ("google/embeddinggemma-300m", 2048),
        ("LGAI-EXAONE/EXAONE-4.5-33B", 262144),
    ],
)
def test_the_context_of_a_name_is_that_of_its_config(name, n_ctx):
    """No total sees it; each is `max_position_embeddings` of the model's own config.json."""
    assert mb.model(name).architecture.n_ctx == n_ctx


def test_each_token_of_flexolmo_is_computed_by_all_experts():
    """`num_experts_per_tok` of its config.json is 7, and 5 by default of its class."""
    assert mb.model("allenai/FlexOlmo-7x7B-1T").architecture.n_expert_per_token == 7


def test_they_are_a_base_of_a_sweep_and_no_model_of_the_list():
    """The list of models that the page shows is that of configs/models alone."""
    catalogue = Catalogue(CATALOGUE)
    assert catalogue["01-ai/Yi-34B"].label == "Yi 34B"
    assert not {*MODELS} & {*catalogue.bases}


def test_a_model_without_a_formula_is_its_class():
    """A name of such a model had no answer but that `measure` has one."""
    tiny = mb.model("openai/whisper-tiny")
    assert tiny.predict("parameters").total == 37_760_640
    assert tiny.predict("cache_bytes").total > 0
