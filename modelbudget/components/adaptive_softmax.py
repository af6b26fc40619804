"""Adaptive input and softmax: a vocabulary in clusters, of which rare tokens are narrower."""

from typing import Annotated, ClassVar

from pydantic import Field

from modelbudget.architecture.base import Count, Size
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import INDEX, bytes_of, tokens
from modelbudget.components.contract import Values
from modelbudget.memory.trained_model import TrainedModel

Cutoff = Annotated[Size, Field(description="tokens before the next cluster; 0 when not adaptive")]


class AdaptiveFields(TrainedModel):
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
    return {"token": _words(a), "projection": a.projected * _widths(a) * a.d_model}


def _widths(a: Fields):
    """Widths of all clusters together."""
    return a.d_model + a.d_cluster_2 + a.d_cluster_3 + a.d_cluster_4


def _clusters(a: Fields):
    """Count the clusters."""
    return 1 + 3 * a.adaptive


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


def embedding_tensors(a: Fields) -> Values:
    """Count the parameter tensors of the adaptive input."""
    return {"token": _clusters(a), "projection": a.projected * _clusters(a)}


def head_tensors(a: Fields) -> Values:
    """Count the parameter tensors of the adaptive softmax; tied ones are the embedding's."""
    return {
        "word": (2 - a.tied) * _clusters(a),
        "projection": a.projected * (1 + 3 * (1 - a.tied_projections)),
        "cluster": a.adaptive * 2,
    }


def embedding_saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved for backward by the adaptive input.

    For each cluster the rows of all tokens, which tokens are its own, and the projection's input.
    """
    n = tokens(r)
    return {
        "token": _clusters(a) * INDEX * n,
        "": _clusters(a) * n,
        "projection": a.projected * bytes_of(r.dtype) * n * _widths(a),
    }


def head_saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved for backward by the adaptive softmax.

    The states, which all projections share; the input of each cluster's scores; and the
    log-probabilities of all tokens, and of the three clusters next to the first's tokens.
    """
    states = bytes_of(r.dtype) * tokens(r)
    plain = 1 - a.projected
    return {
        "": states * (a.projected * a.d_model + a.n_vocab + 3 * a.adaptive),
        "word": states * (plain * a.d_model + a.projected * _widths(a)),
    }


def embedding_flops(a: Fields, r: Run) -> Values:
    """Project the rows of each cluster for every token; looking a row up is no product."""
    return {"projection": 2 * tokens(r) * a.projected * _widths(a) * a.d_model}


def head_flops(a: Fields, r: Run) -> Values:
    """Project the states for each cluster, and score its tokens; score the clusters."""
    n = 2 * tokens(r)
    return {
        "": n * a.projected * _widths(a) * a.d_model,
        "word": n * _words(a),
        "cluster": n * a.adaptive * 3 * a.d_model,
    }
