"""Transformer-XL's attention by content and by distance."""

import torch
from torch import nn

from modelbudget.modules.scaled_dot_product import heads_of


class RelativeAttention(nn.Module):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a):
        super().__init__()
        width = a.n_head * a.d_head
        self.query = nn.Linear(a.d_model, width, bias=False)
        self.key = nn.Linear(a.d_model, width, bias=False)
        self.value = nn.Linear(a.d_model, width, bias=False)
        self.distance = nn.Linear(a.d_model, width, bias=False)
        self.output = nn.Linear(width, a.d_model, bias=False)
        self.n_head, self.scale = a.n_head, a.d_head**-0.5

    def forward(self, x, memory, waves, bias):
        """Attend from the states to themselves and to the memory before them.

        `memory`: earlier states (batch, m, d_model); `waves`: (m + length, d_model), one row for
        each distance from 0; `bias`: u and v, (n_head · d_head,) each.

        A score is (q + u) · k for the content of a position plus (q + v) · r for its distance (Dai
        et al. 2019, §3.3).
        """
        seen = torch.cat((memory, x), dim=1)
        q = self.query(x)
        k, v = self.split(self.key(seen)), self.split(self.value(seen))
        r = self.split(self.distance(waves).unsqueeze(0))
        by_content = self.split(q + bias["content"]) @ k.mT
        by_distance = self.split(q + bias["distance"]) @ r.mT  # (batch, n_head, length, distance)
        query_places = torch.arange(memory.shape[1], seen.shape[1], device=x.device)
        away = query_places[:, None] - torch.arange(seen.shape[1], device=x.device)
        by_distance = by_distance.gather(-1, away.clamp(min=0).expand_as(by_content))
        scores = (by_content + by_distance) * self.scale
        scores = scores.masked_fill(away < 0, float("-inf"))
        return self.output((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def split(self, x):
        return heads_of(x, self.n_head)
