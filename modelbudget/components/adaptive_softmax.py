"""Adaptive input and softmax: a vocabulary in clusters, of which rare tokens are narrower."""

from typing import Annotated, ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.constraint import Constraint

Cutoff = Annotated[Size, Field(description="tokens before the next cluster; 0 when not adaptive")]


class AdaptiveFields(Architecture):
    n_vocab: Count = Field(description="vocabulary size, in tokens by falling frequency")
    d_model: Count = Field(description="width of the residual stream and of the first cluster")
    tied: bool = Field(True, description="each cluster of the head uses its embedding's matrix")
    adaptive: bool = Field(False, description="four clusters of tokens, divided at three cutoffs")
    cutoff_1: Cutoff = 0
    cutoff_2: Cutoff = 0
    cutoff_3: Cutoff = 0
    projected: bool = Field(
        False, description="each cluster has a matrix between its width and d_model, in and out"
    )
    tied_projections: bool = Field(
        False, description="the head's matrices are the embedding's, but for the first cluster"
    )
    d_cluster_2: Count = Field(description="width of the second cluster's tokens")
    d_cluster_3: Count = Field(description="width of the third cluster's tokens")
    d_cluster_4: Count = Field(description="width of the fourth cluster's tokens")

    derived: ClassVar[dict[str, str]] = {f"d_cluster_{number}": "d_model" for number in (2, 3, 4)}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "0 < cutoff_1 < cutoff_2 < cutoff_3 < n_vocab",
            "cutoff_1, cutoff_2, cutoff_3 = ({cutoff_1}, {cutoff_2}, {cutoff_3}) do not rise from "
            "0 to n_vocab = {n_vocab}; each cluster needs a word",
            when="adaptive",
        ),
        Constraint(
            "adaptive",
            "cutoffs = ({cutoff_1}, {cutoff_2}, {cutoff_3}) need adaptive: true",
            when="cutoff_1 or cutoff_2 or cutoff_3",
        ),
        Constraint(
            "adaptive",
            "projected = true needs adaptive: true; one cluster has no need of it",
            when="projected",
        ),
        Constraint(
            "projected",
            "d_cluster_2, d_cluster_3, d_cluster_4 = ({d_cluster_2}, {d_cluster_3}, {d_cluster_4}) "
            "differ from d_model = {d_model}; only projected: true has matrices between them",
            when="not (d_cluster_2 == d_cluster_3 == d_cluster_4 == d_model)",
        ),
        Constraint(
            "projected",
            "tied_projections = true needs projected: true",
            when="tied_projections",
        ),
    )


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
    widths = a.d_model + a.d_cluster_2 + a.d_cluster_3 + a.d_cluster_4
    return {"token": _words(a), "projection": a.projected * widths * a.d_model}


def head(a) -> dict:
    """Count the parameters of the adaptive softmax (Grave et al. 2017, §4).

    `cluster` scores the three clusters next to the tokens of the first; every token has a bias.
    """
    rare = a.d_cluster_2 + a.d_cluster_3 + a.d_cluster_4
    own = a.d_model + (1 - a.tied_projections) * rare
    return {
        "word": (1 - a.tied) * _words(a) + a.n_vocab,
        "projection": a.projected * own * a.d_model,
        "cluster": a.adaptive * 3 * (a.d_model + 1),
    }
