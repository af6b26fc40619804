"""Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464), chunk by chunk in plain PyTorch.

The algorithm is that of `torch_chunk_gated_delta_rule` in transformers (Qwen3-Next).
"""

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsStates, exact

CHUNK = 64
"""Tokens of a chunk, computed in parallel; a shorter chunk is padded."""
EPSILON = 1e-6


class GatedDeltaNet(KeepsStates):
    """States (batch, length, d_model) to states of the same shape.

    Each of n_linear_head heads has a state of d_linear_key × d_linear_value. Heads share queries
    and keys in groups. All but the projections is computed in at least single precision.
    """

    exact_state = True

    def __init__(self, a):
        super().__init__()
        self.n_head, self.n_key_head = a.n_linear_head, a.n_linear_key_head
        self.d_key, self.d_value = a.d_linear_key, a.d_linear_value
        d_query, d_values = self.n_key_head * self.d_key, self.n_head * self.d_value
        self.widths = [d_query, d_query, d_values]
        self.rate = nn.Parameter(torch.empty(self.n_head))
        self.step = nn.Parameter(torch.empty(self.n_head))
        self.query_key_value = nn.Linear(a.d_model, sum(self.widths), bias=False)
        self.convolution = Convolution(sum(self.widths), a.d_linear_convolution)
        self.beta = nn.Linear(a.d_model, self.n_head, bias=False)
        self.decay = nn.Linear(a.d_model, self.n_head, bias=False)
        self.gate = nn.Linear(a.d_model, d_values, bias=False)
        self.norm = nn.RMSNorm(self.d_value)
        self.output = nn.Linear(d_values, a.d_model, bias=False)
        self.shapes = [(self.n_head, self.d_key, self.d_value)]

    def forward(self, x):
        length = x.shape[1]
        chunked = length > 1 or not self.cache
        padding = chunked * (-length % CHUNK)
        mixed = F.silu(self.convolution(self.query_key_value(x), padding)).to(exact(x))
        query, key, value = mixed.split(self.widths, dim=1)
        query = normalised(query, self.n_key_head) * self.d_key**-0.5
        key = normalised(key, self.n_key_head)
        value = heads(value, self.n_head)
        beta = self.beta(x).sigmoid().to(exact(x))
        step = (self.decay(x) + self.step).to(exact(x))
        decay = F.softplus(step) * -self.rate.to(exact(x)).exp()
        beta, decay = (F.pad(y, (0, 0, 0, padding)).transpose(1, 2) for y in (beta, decay))
        query, key = (self.shared(y) for y in (query, key))
        del mixed, step
        if chunked:
            y = self.by_chunk(query, key, value, beta, decay)[:, :length]
        else:
            y = self.by_token(query, key, value, beta, decay)
        del query, key, value, beta, decay
        y = self.norm(y.to(x.dtype))
        return self.output((y * F.silu(self.gate(x).unflatten(2, (self.n_head, -1)))).flatten(2))

    def shared(self, y):
        """(batch, n_linear_key_head, length, width) to a contiguous copy for each head."""
        n_group = self.n_head // self.n_key_head
        return y.unsqueeze(2).expand(-1, -1, n_group, -1, -1).flatten(1, 2).contiguous()

    def by_chunk(self, query, key, value, beta, decay):
        """Compute the gated delta rule chunk by chunk.

        Outputs (batch, length, n_head, d_value) from queries, keys (batch, n_head, length, d_key),
        values, β and the logarithm of the decay (batch, n_head, length).

        Within a chunk, the delta rule is a triangular system (Yang et al. 2024, §3.3); from chunk
        to chunk, a recurrence.
        """
        query, key, value = (y.unflatten(2, (-1, CHUNK)) for y in (query, key, value))
        beta, decay = (y.unflatten(2, (-1, CHUNK)) for y in (beta, decay))
        decay = decay.cumsum(-1)
        future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=decay.device).triu(1)
        between = decay.unsqueeze(4) - decay.unsqueeze(3)
        between = between.masked_fill(future, -torch.inf).exp()
        from_start = decay.exp()
        scaled = key * beta.unsqueeze(-1)
        system = (scaled @ key.transpose(-1, -2)) * between
        within = (query @ key.transpose(-1, -2)) * between
        solve = torch.linalg.solve_triangular
        new = solve(system, value * beta.unsqueeze(-1), upper=False, unitriangular=True)
        old = solve(system, scaled * from_start.unsqueeze(-1), upper=False, unitriangular=True)
        del system, scaled, between
        outputs, state, n_chunk = [], None, query.shape[2]
        for i in range(n_chunk):
            values = new[:, :, i]
            if state is None:
                outputs.append(within[:, :, i] @ values)
            else:
                values = values - old[:, :, i] @ state
                reading = query[:, :, i] * from_start[:, :, i].unsqueeze(-1)
                outputs.append(reading @ state + within[:, :, i] @ values)
            if i + 1 < n_chunk or self.cache:
                last = decay[:, :, i, -1:]
                writing = key[:, :, i] * (last - decay[:, :, i]).exp().unsqueeze(-1)
                written = writing.transpose(-1, -2) @ values
                state = written if state is None else state * last.exp().unsqueeze(-1) + written
        self.keep(state)
        return torch.stack([y.transpose(1, 2) for y in outputs], dim=1).flatten(1, 2)

    def by_token(self, query, key, value, beta, decay):
        """As by_chunk, of one token after those of the cache."""
        state = self.cache.tensors[0] * decay.exp().unsqueeze(-1)
        delta = (value - key @ state) * beta.unsqueeze(-1)
        state = state + key.transpose(-1, -2) * delta
        self.cache.keep(state)
        return (query @ state).transpose(1, 2)


class Convolution(KeepsStates):
    """A causal depthwise convolution.

    (batch, length, n_channel) to (batch, n_channel, length + padding).

    Written out as a sum of shifted products: torch's FLOP counter counts the gradient of a grouped
    convolution as that of a dense one.
    """

    def __init__(self, n_channel: int, span: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_channel, span))
        self.shapes = [(n_channel, span)]

    def forward(self, x, padding: int):
        x, span = x.transpose(1, 2), self.weight.shape[1]
        if self.cache:
            seen = torch.cat((self.cache.tensors[0], x), dim=-1)
            self.cache.keep(seen[..., -span:])
            seen = F.pad(seen[..., 1:], (0, padding))
        else:
            seen = F.pad(x, (span - 1, padding))
        length = seen.shape[-1] - span + 1
        y = seen[..., :length] * self.weight[:, :1]
        for i in range(1, span):
            y = y + seen[..., i : i + length] * self.weight[:, i : i + 1]
        return y


def heads(x, n_head: int):
    """(batch, n_head · width, length) to (batch, n_head, length, width)."""
    return x.unflatten(1, (n_head, -1)).transpose(2, 3)


def normalised(x, n_head: int):
    """Heads of x, each divided by its length."""
    x = heads(x, n_head)
    return x * (x * x).sum(-1, keepdim=True).add(EPSILON).rsqrt()


make = GatedDeltaNet
