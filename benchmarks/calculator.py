"""Call llm-analysis, a public calculator (Li 2023, https://github.com/cli99/llm-analysis).

It counts a decoder without biases and without position embeddings.
"""

import logging
from importlib.metadata import version

from llm_analysis.analysis import LLMAnalysis
from llm_analysis.config import GPUConfig, ModelConfig
from llm_analysis.logger import logger

from modelbudget.families.decoder import Decoder

NAME = f"llm-analysis {version('llm-analysis')}"
GPU = GPUConfig("any", 80, 2000, 300, 1e-6, 300)
"""A required argument that does not change the count."""
logger.setLevel(logging.ERROR)  # it logs the assumed GPU for every model


def config(n_vocab: int, n_ctx: int, d_model: int, n_layer: int, d_ff: int) -> ModelConfig:
    # With both given, it does not require that one width divides the other.
    widths = {"ffn_embed_dim": d_ff, "expansion_ratio": 4}
    return ModelConfig("any", n_layer, 1, d_model, n_vocab, n_ctx, **widths)


def as_documented(models: list[tuple]) -> list[int]:
    """Count each model with an analysis of its own."""
    return [LLMAnalysis(config(*sizes), GPU).get_num_params_total() for sizes in models]


def formula_alone(models: list[tuple]) -> list[int]:
    """Count all models with one analysis, whose config is replaced: only the formula is run."""
    analysis = LLMAnalysis(config(*models[0]), GPU)
    found = []
    for sizes in models:
        analysis.update_model_config(config(*sizes))
        found.append(analysis.get_num_params_total())
    return found


def counted(decoder: Decoder) -> Decoder:
    """Remove from a decoder what the calculator does not count."""
    biases = {name: False for name in Decoder.model_fields if name.endswith("_bias")}
    return decoder.model_copy(update=biases | {"position": "none"})
