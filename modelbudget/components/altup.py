"""Alternating updates: several residual streams, of which a layer computes one.

Baykal et al. 2023 (AltUp), §3; transformers, models/gemma3n/modeling_gemma3n.py:
`Gemma3nTextAltUp`. A layer predicts all streams from all, computes the first, and corrects every
stream by what it found; the coefficients are functions of the first stream. Streams begin with
projections of the token embedding, and end with projections whose mean the head reads.
"""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.base import Architecture, Parts
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.common.attributes import with_attributes
from modelbudget.components import norm
from modelbudget.memory.parameter_tensors import Tensor, matrix, vector
from modelbudget.operations.joining import stack
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import parameter


class AltUpFields(Architecture):
    n_stream: Parts = 1


def of_model(a: Fields) -> list[Tensor]:
    """Return the projections of the token embedding to streams, and of streams to what is read."""
    n_more = a.n_stream - 1
    return [matrix(name, a.d_model, a.d_model, n_more) for name in ("expand", "merge")]


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


def program(a: Fields, r: Run):
    """Predict all streams (n_stream, batch, length, d_model) from all; `correct` corrects them."""
    n = a.n_stream
    scale = parameter("scale", a.d_model)
    correction, prediction = make_linear("correction", n, n), make_linear("prediction", n, n * n)
    modalities = make_linear("modalities", a.d_model, n)
    norm_ = norm.make("norm", a, r)

    def chosen(x):
        return modalities(norm_(x) / 2.0).tanh()

    def forward(streams):
        coefficients = prediction(chosen(streams.select(0)))
        coefficients = coefficients.unflatten(2, (n, n)).transpose(2, 3)
        predicted = streams.permute((1, 2, 3, 0)) @ coefficients
        return predicted.permute((3, 0, 1, 2)) + streams

    def correct(predicted, computed):
        """Correct all streams by what a layer computed of the first."""
        coefficients = correction(chosen(computed)) + 1.0
        innovation = (computed - predicted.select(0)).unsqueeze(0)
        coefficients = coefficients.permute((2, 0, 1)).unsqueeze(-1)
        return predicted + innovation * coefficients

    return with_attributes(forward, correct=correct, scale=scale)


def streams_program(a: Fields):
    """Token embedding (batch, length, d_model) to streams; `end` makes of them what is read."""
    expand, merge = (
        [make_linear(name, a.d_model, a.d_model) for _ in range(a.n_stream - 1)]
        for name in ("expand", "merge")
    )

    def forward(x):
        return stack((x, *(_like(projection(x), x) for projection in expand)))

    def end(streams):
        first, *more = streams.unbind()
        projected = (_like(projection(x), first) for projection, x in zip(merge, more, strict=True))
        return stack((first, *projected)).mean([0])

    return with_attributes(forward, end=end)


def _like(x, reference):
    """Return vectors with the magnitude of others."""
    wanted, square = ((y**2).mean([-1], keepdim=True) for y in (reference, x))
    return x * wanted.sqrt() / square.clamp().sqrt()
