"""RWKV-5, 6 and 7, their recurrences written out step by step."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import State, exact
from modelbudget.modules.embedding import padded
from modelbudget.modules.head_linear import HeadLinear
from modelbudget.modules.lm_head import make_head
from modelbudget.modules.norm import HeadNorm, make_norm
from modelbudget.modules.rwkv import ChannelMixer, Mixer


class LowRank(nn.Module):
    """(…, d_model) to the same shape through `rank` channels and a function of them."""

    def __init__(self, d_model: int, rank: int, function=None, bias: bool = True):
        super().__init__()
        self.down = nn.Linear(d_model, rank, bias=False)
        self.up = nn.Linear(rank, d_model, bias=bias)
        self.function = function

    def forward(self, x):
        low = self.down(x)
        return self.up(low if self.function is None else self.function(low))


class MatrixMixer(Mixer):
    """A time mixer whose heads have matrices as states. Shapes: (batch, length, d_model)."""

    def __init__(self, a, n_mix: int):
        super().__init__(a.d_model, n_mix)
        self.n_head, self.d_head = a.n_head, a.d_head
        self.bonus = nn.Parameter(torch.empty(a.d_model))
        self.receptance = nn.Linear(a.d_model, a.d_model, bias=False)
        self.key = nn.Linear(a.d_model, a.d_model, bias=False)
        self.value = nn.Linear(a.d_model, a.d_model, bias=False)
        self.output = nn.Linear(a.d_model, a.d_model, bias=False)
        self.norm = HeadNorm(a.d_model)

    def make_cache(self, batch: int, length: int, like) -> State:
        """Allocate the previous token's state and a matrix for each head."""
        state = super().make_cache(batch, length, like)
        state.tensors.append(self.first_state(batch, like))
        return state

    def first_state(self, batch: int, like):
        """(batch · n_head, d_head, d_head), in at least single precision."""
        shape = batch * self.n_head, self.d_head, self.d_head
        return like.new_zeros(shape, dtype=exact(like))

    def before(self, x):
        """Return the matrices before the first token."""
        return self.cache.tensors[1] if self.cache else self.first_state(len(x), x)

    def keep(self, x, state) -> None:
        if self.cache:
            self.cache.keep(x[:, -1], state)

    def by_token(self, *tensors) -> list:
        """Return copies (length, batch · n_head, d_head) in one storage, in exact precision."""
        outputs = []
        for x in tensors:
            heads = x.to(exact(x)).unflatten(-1, (self.n_head, self.d_head))
            outputs.append(heads.transpose(0, 1).flatten(1, 2))
        return list(torch.stack(outputs))

    def normed(self, outputs, like):
        """(length, batch · n_head, d_head) to (batch, length, d_model)."""
        heads = outputs.to(like.dtype).unflatten(1, (-1, self.n_head)).transpose(0, 1)
        return self.norm(heads)

    def of_sequences(self, x, batch: int):
        """(d_model,) to (batch · n_head, d_head, 1), in exact precision."""
        heads = x.to(exact(x)).unflatten(0, (self.n_head, self.d_head))
        return heads.repeat(batch, 1).unsqueeze(-1)


class TimeMixer5(MatrixMixer):
    """RWKV-5: one decay for each channel."""

    def __init__(self, a):
        super().__init__(a, 4)
        self.decay = nn.Parameter(torch.empty(a.d_model))
        self.gate = nn.Linear(a.d_model, a.d_model, bias=False)

    def forward(self, x):
        for_receptance, for_key, for_value, for_gate = self.blend(x)
        inputs = self.receptance(for_receptance), self.key(for_key), self.value(for_value)
        decay = torch.exp(-torch.exp(self.decay.to(exact(x))))
        decays = [self.of_sequences(decay, len(x))] * x.shape[1]
        bonus = self.of_sequences(self.bonus, len(x))
        r, k, v = self.by_token(*inputs)
        read, state = scan(r, k, v, decays, bonus, self.before(x))
        self.keep(x, state)
        return self.output(self.normed(read, x) * F.silu(self.gate(for_gate)))


class TimeMixer6(MatrixMixer):
    """RWKV-6: mixes and decays depend on the token. The first row of `mix` is for all mixes."""

    def __init__(self, a):
        super().__init__(a, 6)
        self.mix_down = nn.Linear(a.d_model, 5 * a.d_mix, bias=False)
        self.mix_up = HeadLinear(5, a.d_mix, a.d_model)
        self.decay = LowRank(a.d_model, a.d_decay, torch.tanh)
        self.gate = nn.Linear(a.d_model, a.d_model, bias=False)

    def forward(self, x):
        change = self.previous(x) - x
        low = torch.tanh(self.mix_down(x + change * self.mix[0]))
        low = low.flatten(0, 1).unflatten(1, (5, -1)).transpose(0, 1)
        mixes = self.mix_up(low).unflatten(1, x.shape[:2]) + self.mix[1:, None, None]
        blends = [x + change * mix for mix in mixes.unbind()]
        for_receptance, for_key, for_value, for_gate, for_decay = blends
        decay = torch.exp(-torch.exp(self.decay(for_decay).to(exact(x))))
        inputs = self.receptance(for_receptance), self.key(for_key), self.value(for_value), decay
        r, k, v, w = self.by_token(*inputs)
        bonus = self.of_sequences(self.bonus, len(x))
        read, state = scan(r, k, v, w.unsqueeze(-1).unbind(), bonus, self.before(x))
        self.keep(x, state)
        return self.output(self.normed(read, x) * F.silu(self.gate(for_gate)))


def scan(receptance, key, value, decays, bonus, state):
    """S ← decay · S + k ⊗ v; reads r (S + bonus · k ⊗ v) (Peng et al. 2024, §4).

    receptance, key, value: (length, heads of all sequences, d_head); decays: of each token, (heads,
    d_head, 1), as the bonus; state: (heads, d_head, d_head). Returns the shape of value, and the
    last state.
    """
    written = key.unsqueeze(-1) * value.unsqueeze(-2)
    outputs = []
    each = receptance.unbind(), written.unbind(), (bonus * written).unbind(), decays
    for r, new, boosted, decay in zip(*each, strict=True):
        outputs.append(torch.bmm(r.unsqueeze(1), state + boosted).squeeze(1))
        state = decay * state + new
    return torch.stack(outputs), state


class TimeMixer7(MatrixMixer):
    """RWKV-7: a delta rule. All layers but the first read the values of the first."""

    def __init__(self, a, is_first: bool):
        super().__init__(a, 6)
        self.decay = LowRank(a.d_model, a.d_decay, torch.tanh)
        self.rate = LowRank(a.d_model, a.d_rate)
        self.gate = LowRank(a.d_model, a.d_gate, torch.sigmoid, bias=False)
        self.value_mix = None if is_first else LowRank(a.d_model, a.d_value_mix)
        self.removal = nn.Parameter(torch.empty(a.d_model))
        self.replacement = nn.Parameter(torch.empty(a.d_model))

    def forward(self, x, first_value):
        """Return the output, and the values that the next layers read."""
        change = self.previous(x) - x
        for_receptance, for_decay, for_key, for_value, for_rate, for_gate = (
            x + change * mix for mix in self.mix
        )
        r, k, v = self.receptance(for_receptance), self.key(for_key), self.value(for_value)
        if self.value_mix is None:
            first_value = v
        else:
            v = v + (first_value - v) * torch.sigmoid(self.value_mix(for_value))
        decay = torch.sigmoid(self.decay(for_decay).to(exact(x)))
        decay = torch.exp(-math.exp(-0.5) * decay)
        rate = torch.sigmoid(self.rate(for_rate))
        removed = F.normalize(self.heads(k * self.removal), dim=-1).flatten(2)
        k = k * (1 + (rate - 1) * self.replacement)
        inputs = self.by_token(r, decay, k, v, removed, removed * rate)
        read, state = delta_scan(inputs, self.before(x))
        self.keep(x, state)
        of_token = self.heads(r * k * self.bonus).sum(-1, keepdim=True) * self.heads(v)
        read = self.normed(read, x) + of_token.flatten(2)
        return self.output(read * self.gate(for_gate)), first_value

    def heads(self, x):
        """(batch, length, d_model) to (batch, length, n_head, d_head)."""
        return x.unflatten(-1, (self.n_head, self.d_head))


def delta_scan(inputs: list, state):
    """S ← S diag(w) − (S κ) ⊗ (a κ) + v ⊗ k; reads S r (Peng et al. 2025, §4.1).

    inputs: r, w, k, v, κ and a κ, each (length, heads of all sequences, d_head); state: (heads,
    d_head, d_head). Returns the shape of v, and the last state.
    """
    outputs = []
    for r, w, k, v, old, step in zip(*(x.unbind() for x in inputs), strict=True):
        read = torch.bmm(state, old.unsqueeze(-1))
        written = v.unsqueeze(-1) * k.unsqueeze(-2)
        state = state * w.unsqueeze(-2) - read * step.unsqueeze(-2) + written
        outputs.append(torch.bmm(state, r.unsqueeze(-1)).squeeze(-1))
    return torch.stack(outputs), state


class ChannelMixer7(Mixer):
    """RWKV-7: without a gate."""

    def __init__(self, a):
        super().__init__(a.d_model, 1)
        self.key = nn.Linear(a.d_model, a.d_ff, bias=False)
        self.value = nn.Linear(a.d_ff, a.d_model, bias=False)

    def forward(self, x):
        mixed = x + (self.previous(x) - x) * self.mix[0]
        if self.cache:
            self.cache.keep(x[:, -1])
        return self.value(F.relu(self.key(mixed)).square())


class MatrixLayer(nn.Module):
    """States (batch, length, d_model) to states of the same shape; RWKV-7 passes values on."""

    def __init__(self, a, time: nn.Module, channel: nn.Module):
        super().__init__()
        self.time, self.channel = time, channel
        self.norm = nn.ModuleDict({n: make_norm(a) for n in ("time", "channel")})

    def forward(self, x, values=None):
        normed = self.norm["time"](x)
        if isinstance(self.time, TimeMixer7):
            change, values = self.time(normed, values)
        else:
            change = self.time(normed)
        x = x + change
        return x + self.channel(self.norm["channel"](x)), values


class MatrixRWKVModel(nn.Module):
    """Tokens (batch, length) to logits (batch, length, n_vocab)."""

    def __init__(self, a, family: str):
        super().__init__()
        token = nn.Embedding(padded(a), a.d_model)
        self.embedding = nn.ModuleDict({"token": token, "norm": make_norm(a)})
        self.layer = nn.ModuleList(
            MatrixLayer(a, *MIXERS[family](a, i == 0)) for i in range(a.n_layer)
        )
        self.norm = nn.ModuleDict({"final": make_norm(a)})
        self.head = make_head(a, token, a.d_model)

    def forward(self, tokens):
        x, values = self.embedding["norm"](self.embedding["token"](tokens)), None
        for layer in self.layer:
            x, values = layer(x, values)
        return self.head(self.norm["final"](x))


MIXERS = {
    "RWKV5": lambda a, is_first: (TimeMixer5(a), ChannelMixer(a)),
    "RWKV6": lambda a, is_first: (TimeMixer6(a), ChannelMixer(a)),
    "RWKV7": lambda a, is_first: (TimeMixer7(a, is_first), ChannelMixer7(a)),
}
"""Both mixers of a layer, by family."""
