"""Adaptive input and softmax: a vocabulary in clusters, of which rare tokens are narrower."""

from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.common.attributes import with_attributes
from modelbudget.components.embedding import table_program
from modelbudget.operations.elementwise import compare, without_gradient
from modelbudget.operations.joining import cat
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.products import linear
from modelbudget.operations.reductions import log_softmax

Cutoff = Annotated[Size, Field(description="tokens before the next cluster; 0 when not adaptive")]


class AdaptiveFields(Architecture):
    n_vocab: Count
    d_model: Count
    tied: bool = True
    adaptive: bool = False
    cutoff_1: Cutoff = 0
    cutoff_2: Cutoff = 0
    cutoff_3: Cutoff = 0
    projected: bool = False
    tied_projections: bool = False
    d_cluster_2: Count
    d_cluster_3: Count
    d_cluster_4: Count

    derived: ClassVar[dict[str, str]] = {f"d_cluster_{number}": "d_model" for number in (2, 3, 4)}


def _words(a):
    """Parameters of the tables of all clusters; without cutoffs, all tokens are in the last."""
    return (
        a.cutoff_1 * a.d_model
        + (a.cutoff_2 - a.cutoff_1) * a.d_cluster_2
        + (a.cutoff_3 - a.cutoff_2) * a.d_cluster_3
        + (a.n_vocab - a.cutoff_3) * a.d_cluster_4
    )


def embedding(a) -> dict:
    """Adaptive input: Baevski & Auli 2019, §3."""
    width = a.d_model + a.d_cluster_2 + a.d_cluster_3 + a.d_cluster_4
    return {"token": _words(a), "projection": a.projected * width * a.d_model}


def head(a) -> dict:
    """Count the parameters of the adaptive softmax (Grave et al. 2017, §4).

    `cluster` scores the three clusters next to the tokens of the first; every token has a bias.
    """
    rare = a.d_cluster_2 + a.d_cluster_3 + a.d_cluster_4
    width = a.d_model + (1 - a.tied_projections) * rare
    return {
        "word": (1 - a.tied) * _words(a) + a.n_vocab,
        "projection": a.projected * width * a.d_model,
        "cluster": a.adaptive * 3 * (a.d_model + 1),
    }


def sizes_of_clusters(a: Fields) -> list[tuple]:
    """Return the tokens and the width of each cluster."""
    if not a.adaptive:
        return [(a.n_vocab, a.d_model)]
    ends = (0, a.cutoff_1, a.cutoff_2, a.cutoff_3, a.n_vocab)
    widths = (a.d_model, a.d_cluster_2, a.d_cluster_3, a.d_cluster_4)
    return [(end - at, width) for (at, end), width in zip(pairwise(ends), widths, strict=True)]


def input_program(a: Fields, r: Run):
    """Tokens (batch, length) to states (batch, length, d_model)."""
    clusters = sizes_of_clusters(a)
    tables = [make_part("token", table_program, n, width) for n, width in clusters]
    projections = [
        make_part("projection", _matrix, a.d_model, width) for _, width in clusters * a.projected
    ]

    def forward(tokens):
        x = None
        for i, table in enumerate(tables):
            is_inside = compare(compare(tokens), compare(tokens))
            y = table(without_gradient(without_gradient(tokens)))
            if projections:
                y = projections[i](y)
            weighted = y * is_inside.unsqueeze(-1)
            x = weighted + 0.0 if x is None else x + weighted
            del weighted
        return x

    return with_attributes(
        forward,
        tables=[table.weight for table in tables],
        projections=[projection.weight for projection in projections],
    )


def _matrix(d_out, d_in):
    weight = parameter("weight", d_out, d_in)

    def forward(x):
        return linear(x, weight)

    return with_attributes(forward, weight=weight)


def head_program(a: Fields, r: Run, tables: list, projections: list):
    """States (batch, length, d_model) to logarithms of probabilities (batch, length, n_vocab).

    `tables` and `projections`: the matrices of the input, which tied ones are.
    """
    clusters = sizes_of_clusters(a)
    words = [
        make_part("word", _scores, *sizes, table if a.tied else None)
        for sizes, table in zip(clusters, tables, strict=True)
    ]
    n_projection = (1 if a.tied_projections else len(clusters)) * a.projected
    projected = [
        make_part("projection", _matrix, a.d_model, width) for _, width in clusters[:n_projection]
    ]
    matrices = [part.weight for part in projected] + projections[n_projection:]
    n_rare = len(clusters) - 1
    cluster = make_linear("cluster", a.d_model, n_rare, bias=True) if n_rare else None

    def forward(x):
        first = scores(0, x)
        if cluster is None:
            return log_softmax(first)
        first = log_softmax(cat((first, cluster(x))))
        common = first.narrow(-1, first.shape[-1] - n_rare)
        rare = first.narrow(-1, n_rare, is_first=False)
        within = [log_softmax(scores(i + 1, x)) for i in range(n_rare)]
        columns = (rare.narrow(-1, 1, is_first=n_rare == 1) for _ in within)
        return cat((common, *(column + of for column, of in zip(columns, within, strict=True))))

    def scores(i, x):
        """Return those of the words of a cluster, (batch, length, words)."""
        if a.projected:
            x = x @ matrices[i]
        return words[i](x)

    return forward


def _scores(n, width, table):
    weight = parameter("weight", n, width) if table is None else table
    bias = parameter("bias", n)
    return lambda x: linear(x, weight, bias)
