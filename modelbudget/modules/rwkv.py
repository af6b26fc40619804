"""RWKV-4."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsStates, State
from modelbudget.modules.embedding import padded
from modelbudget.modules.language_model import LanguageModel
from modelbudget.modules.lm_head import make_head
from modelbudget.modules.norm import make_norm


class Mixer(KeepsStates):
    """Token shift, common to both mixers: mix each token with the previous one, per channel."""

    def __init__(self, d_model: int, n_mix: int):
        super().__init__()
        self.mix = nn.Parameter(torch.empty(n_mix, d_model))
        self.shapes = [(d_model,)]

    def previous(self, x):
        """Return the state before each token."""
        if self.cache:
            return torch.cat((self.cache.tensors[0].unsqueeze(1), x[:, :-1]), dim=1)
        return F.pad(x, (0, 0, 1, -1))

    def blend(self, x):
        """(batch, length, d_model) to n_mix blends of that shape."""
        before = self.previous(x)
        return [mix * x + (1 - mix) * before for mix in self.mix]


class TimeMixer(Mixer):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a):
        super().__init__(a.d_model, 3)
        self.decay = nn.Parameter(torch.empty(a.d_model))
        self.bonus = nn.Parameter(torch.empty(a.d_model))
        self.receptance = nn.Linear(a.d_model, a.d_model, bias=False)
        self.key = nn.Linear(a.d_model, a.d_model, bias=False)
        self.value = nn.Linear(a.d_model, a.d_model, bias=False)
        self.output = nn.Linear(a.d_model, a.d_model, bias=False)

    def make_cache(self, batch: int, length: int, like) -> State:
        """Allocate the previous token's state and the three running sums of `sums`."""
        state = super().make_cache(batch, length, like)
        state.tensors += sums(like.new_empty(batch, 1, len(self.decay)))
        return state

    def forward(self, x):
        for_receptance, for_key, for_value = self.blend(x)
        key, value = self.key(for_key), self.value(for_value)
        before = self.cache.tensors[1:] if self.cache else sums(key)
        mixed, after = wkv(key, value, self.decay, self.bonus, before)
        if self.cache:
            self.cache.keep(x[:, -1], *after)
        return self.output(torch.sigmoid(self.receptance(for_receptance)) * mixed)


def sums(key) -> list:
    """Return the running sums of WKV before the first token.

    Weighted values, weights, and the largest exponent: (batch, d_model) each, in at least single
    precision.
    """
    exact = torch.promote_types(key.dtype, torch.float32)
    none = torch.zeros_like(key[:, 0], dtype=exact)
    return [none, none.clone(), torch.full_like(none, torch.finfo(exact).min)]


def wkv(key, value, decay, bonus, before):
    """Compute WKV, a weighted mean of all values so far (Peng et al. 2023, §3.1).

    The weight of a value is exp(key), multiplied by exp(−exp(decay)) with each step back, and
    exp(key + bonus) for the current token.

    key, value: (batch, length, d_model); decay, bonus: (d_model,). Sums are kept relative to the
    largest exponent seen, so that nothing overflows, and in their own precision, as the authors'
    kernel does. Returns the shape of key, and the sums after the last token.
    """
    loss = decay.exp()
    weighted, weights, largest = before
    outputs = []
    for k, v in zip(key.unbind(1), value.unbind(1), strict=True):
        top = torch.maximum(largest, k + bonus)
        past, present = torch.exp(largest - top), torch.exp(k + bonus - top)
        outputs.append((past * weighted + present * v) / (past * weights + present))
        top = torch.maximum(largest - loss, k)
        past, present = torch.exp(largest - loss - top), torch.exp(k - top)
        weighted, weights = past * weighted + present * v, past * weights + present
        largest = top
    return torch.stack(outputs, dim=1).to(key.dtype), [weighted, weights, largest]


class ChannelMixer(Mixer):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a):
        super().__init__(a.d_model, 2)
        self.receptance = nn.Linear(a.d_model, a.d_model, bias=False)
        self.key = nn.Linear(a.d_model, a.d_ff, bias=False)
        self.value = nn.Linear(a.d_ff, a.d_model, bias=False)

    def forward(self, x):
        for_receptance, for_key = self.blend(x)
        if self.cache:
            self.cache.keep(x[:, -1])
        value = self.value(F.relu(self.key(for_key)).square())
        return torch.sigmoid(self.receptance(for_receptance)) * value


class RWKVLayer(nn.Module):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a):
        super().__init__()
        self.time = TimeMixer(a)
        self.channel = ChannelMixer(a)
        self.norm = nn.ModuleDict({n: make_norm(a) for n in ("time", "channel")})

    def forward(self, x):
        x = x + self.time(self.norm["time"](x))
        return x + self.channel(self.norm["channel"](x))


def rwkv_model(a) -> LanguageModel:
    token = nn.Embedding(padded(a), a.d_model)
    embedding = nn.Sequential(OrderedDict(token=token, norm=make_norm(a)))
    layers = [RWKVLayer(a) for _ in range(a.n_layer)]
    return LanguageModel(embedding, layers, make_head(a, token, a.d_model), make_norm(a))
