"""Alternating updates: several residual streams, of which a layer computes one.

Baykal et al. 2023 (AltUp), §3; transformers, models/gemma3n/modeling_gemma3n.py:
`Gemma3nTextAltUp`. A layer predicts all streams from all, computes the first, and corrects every
stream by what it found; the coefficients are functions of the first stream. Streams begin with
projections of the token embedding, and end with projections whose mean the head reads.
"""

from pydantic import Field

from modelbudget.architecture.base import Architecture, Parts
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import tokens
from modelbudget.components import norm
from modelbudget.components.contract import Values
from modelbudget.memory.parameter_tensors import Tensor, matrix, vector


class AltUpFields(Architecture):
    n_stream: Parts = Field(1, description="residual streams, of which a layer computes one")


def of_model(a: Fields) -> list[Tensor]:
    """Return the projections of the token embedding to streams, and of streams to what is read."""
    others = a.n_stream - 1
    return [matrix(name, a.d_model, a.d_model, others) for name in ("expand", "merge")]


def of_layer(a: Fields) -> list[Tensor]:
    """Return the coefficients of prediction and correction, what selects them, and a scale."""
    n, is_there = a.n_stream, positive(a.n_stream - 1)
    return [
        vector("scale", a.d_model, is_there),
        matrix("correction", n, n, is_there),
        matrix("prediction", n * n, n, is_there),
        matrix("modalities", n, a.d_model, is_there),
        *norm.tensors(a, "norm", is_there),
    ]


def flops(a: Fields, r: Run) -> Values:
    """Count the FLOPs of a layer: coefficients twice, and all streams from all streams."""
    n, per_token = a.n_stream, 2 * tokens(r) * positive(a.n_stream - 1)
    return {
        "modalities": 2 * per_token * n * a.d_model,
        "prediction": per_token * n * n * n,
        "correction": per_token * n * n,
        "": per_token * n * n * a.d_model,
    }
