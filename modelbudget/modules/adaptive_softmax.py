"""Adaptive input and adaptive softmax, tied or not."""

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.lm_head import LMHead


def clusters(a) -> list[tuple[int, int, int]]:
    """First word, end and width of each cluster."""
    if not a.adaptive:
        return [(0, a.n_vocab, a.d_model)]
    ends = (0, a.cutoff_1, a.cutoff_2, a.cutoff_3, a.n_vocab)
    widths = (a.d_model, a.d_cluster_2, a.d_cluster_3, a.d_cluster_4)
    return [(*span, width) for span, width in zip(pairwise(ends), widths, strict=True)]


class AdaptiveInput(nn.Module):
    """Tokens (batch, length) to states (batch, length, d_model)."""

    def __init__(self, a):
        super().__init__()
        self.clusters = clusters(a)
        self.token = nn.ModuleList(
            nn.Embedding(end - at, width) for at, end, width in self.clusters
        )
        self.projection: Any = None
        if a.projected:
            self.projection = nn.ModuleList(
                nn.Linear(width, a.d_model, bias=False) for _, _, width in self.clusters
            )

    def forward(self, tokens):
        x = 0
        for i, (at, end, _) in enumerate(self.clusters):
            inside = (tokens >= at) & (tokens < end)
            y = self.token[i]((tokens - at).clamp(0, end - at - 1))
            y = y if self.projection is None else self.projection[i](y)
            x = x + y * inside.unsqueeze(-1)
        return x


class AdaptiveSoftmax(nn.Module):
    """States (batch, length, d_model) to logarithms of probabilities (batch, length, n_vocab).

    One softmax is over the words of the first cluster and the other clusters, another over the
    words of each cluster. Tied matrices are the Parameters of `words`, not copies.
    """

    def __init__(self, a, words: AdaptiveInput):
        super().__init__()
        self.word = nn.ModuleList(
            LMHead(end - at, width, bias=True, tied_to=table if a.tied else None)
            for (at, end, width), table in zip(words.clusters, words.token, strict=True)
        )
        self.projection = None
        if a.projected:
            untied = words.clusters[:1] if a.tied_projections else words.clusters
            # As in the input, from width to d_model, and used the other way round.
            self.projection = nn.ModuleList(
                nn.Linear(width, a.d_model, bias=False) for _, _, width in untied
            )
            self.projection.extend(words.projection[len(untied) :])
        n_rare = len(words.clusters) - 1
        self.cluster = nn.Linear(a.d_model, n_rare) if n_rare else None

    def forward(self, x):
        first = self.scores(0, x)
        if self.cluster is None:
            return F.log_softmax(first, dim=-1)
        first = F.log_softmax(torch.cat((first, self.cluster(x)), dim=-1), dim=-1)
        n_rare = self.cluster.out_features
        common, rare = first[..., :-n_rare], first[..., -n_rare:]
        within = [F.log_softmax(self.scores(i + 1, x), dim=-1) for i in range(n_rare)]
        return torch.cat(
            (common, *(rare[..., i : i + 1] + words for i, words in enumerate(within))), dim=-1
        )

    def scores(self, i: int, x):
        """Return the logits of the words of cluster i, (batch, length, words)."""
        if self.projection is not None:
            x = x @ self.projection[i].weight
        return self.word[i](x)
