"""Causal attention, with GQA or MQA if wanted."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import KeepsKeys
from modelbudget.modules.joined import joined_linear
from modelbudget.modules.norm import make_norm
from modelbudget.modules.position import Mask, causal, shift, sinusoids
from modelbudget.modules.rope import complex_table, rotate, rotate_complex, rotate_with
from modelbudget.modules.scaled_dot_product import ScaledDotProductAttention, heads_of


class Attention(KeepsKeys):
    """States (batch, length, d_model) to states of the same shape.

    `bias`, if given, is added to the scores: (n_head, queries, keys), with its own causal mask, or
    a mask of each sequence, with that of the window. With `rotation`, queries and keys are rotated
    with the tables of the model, or with a buffer of its own. With a `window` a
    token attends itself and the window − 1 tokens before it, else all of them.
    """

    reads_positions = True

    def __init__(self, a, position: str = "none", window: int = 0):
        super().__init__()
        self.window, self.start = window, 0
        self.n_head, self.n_kv_head, self.d_head = a.n_head, a.n_kv_head, a.d_head
        # n_head · d_head need not be d_model: PaLM 540B has 48 · 256 = 12,288 of 18,432.
        d_query, d_key = a.n_head * a.d_head, a.n_kv_head * a.d_head
        self.query = nn.Linear(a.d_model, d_query, bias=a.query_bias)
        d_gate = a.n_head if a.gate_per_head else d_query
        gate = nn.Linear(a.d_model, d_gate, bias=a.query_bias) if a.attention_gate else None
        self.gate, self.gate_per_head = gate, a.gate_per_head
        self.key = nn.Linear(a.d_model, d_key, bias=a.key_bias)
        self.value = nn.Linear(a.d_model, d_key, bias=a.value_bias)
        self.output = nn.Linear(d_query, a.d_model, bias=a.output_bias)
        self.norm = make_norm(a, d_query) if a.inner_norm else None
        self.query_key_value: Any = None
        self.widths: Any = None  # of the parts of a packed matrix
        self.sliced = self.copied = self.rope_by_head = self.casts_rope_back = False
        self.register_buffer("rope_table", None, persistent=False)
        self.core = ScaledDotProductAttention()
        self.qk_norm = a.qk_norm
        self.query_norm = make_head_norm(a, a.n_head)
        self.key_norm = make_head_norm(a, a.n_kv_head)
        self.d_rotary = (a.d_rotary or a.d_head) if position == "rotary" else 0
        self.relative = position == "relative"
        if self.relative:
            self.position = nn.Linear(a.d_model, d_query, bias=False)
            self.content_bias = nn.Parameter(torch.empty(a.n_head, 1, a.d_head))
            self.position_bias = nn.Parameter(torch.empty(a.n_head, 1, a.d_head))
        self.sinks: Any = nn.Parameter(torch.empty(a.n_head)) if a.sinks else None

    def tabulate(self, length: int) -> None:
        """Keep complex numbers of RoPE for `length` positions as a buffer; 0: do not."""
        if not (length and self.d_rotary):
            self.rope_table = None
        elif self.rope_table is None:
            self.rope_table = complex_table(length, self.d_rotary, self.output.weight)

    def pack(self, projections: str) -> None:
        """Make one matrix of those that the setting names, once and for all unless `separate`.

        Query, key and value, whose result is split (`packed`), sliced, or split and copied; or
        query and gate. Raises ValueError if not all of them have a bias and not none.
        """
        self.sliced, self.copied = projections == "sliced", projections == "copied"
        if projections == "separate" or self.widths is not None:
            return
        with_gate = projections == "gated_query"
        names = ("query", "gate") if with_gate else ("query", "key", "value")
        parts = [getattr(self, name) for name in names]
        self.widths = [part.out_features for part in parts]
        joined = joined_linear(parts)
        if with_gate:
            self.query, self.gate = joined, None
            return
        del self.query, self.key, self.value
        self.query_key_value = joined

    def project(self, x) -> tuple:
        """Return queries, keys and values, each (batch, heads, length, d_head), and the gate.

        None for a gate that has a matrix of its own, or that there is not. Last comes what is live
        to the end: a result that is sliced has a name.
        """
        if self.query_key_value is None:
            if self.widths is None:
                q, gate = heads_of(self.query(x), self.n_head, norm=self.query_norm), None
            else:
                q, gate = self.query(x).split(self.widths, dim=-1)
                q = heads_of(q, self.n_head, norm=self.query_norm)
            k = heads_of(self.key(x), self.n_kv_head, norm=self.key_norm)
            return q, k, heads_of(self.value(x), self.n_kv_head), gate, None
        packed = self.query_key_value(x)
        q, k, v = self.parts(packed)
        q = heads_of(q, self.n_head, norm=self.query_norm)
        k = heads_of(k, self.n_kv_head, norm=self.key_norm)
        return q, k, heads_of(v, self.n_kv_head), None, packed if self.sliced else None

    def parts(self, joined) -> tuple:
        """Return queries, keys and values of the joined result (batch, length, sum of widths)."""
        if self.copied:
            return tuple(part.contiguous() for part in joined.split(self.widths, dim=-1))
        if not self.sliced:
            return joined.split(self.widths, dim=-1)
        key, value = self.widths[0], sum(self.widths[:2])
        return joined[..., :key], joined[..., key:value], joined[..., value:]

    def forward(self, x, bias=None, rotation=None):
        q, k, v, gate, _held = self.project(x)
        if rotation is not None and self.rope_table is not None:
            q, k = rotate_complex((q, k), self.rope_table[rotation.places])
        elif rotation is not None and self.d_rotary:
            q, k = rotate_with((q, k), rotation, self.rope_by_head, self.casts_rope_back)
        elif self.d_rotary:
            start = self.cache.length if self.cache else self.start
            q, k = rotate(q, self.d_rotary, start), rotate(k, self.d_rotary, start)
        if self.cache:
            if self.relative:
                raise ValueError("no cache where distances are projected")
            k, v = self.cache.append(k, v)
        if self.relative:
            bias = self.distance_scores(q, x) + causal(x.shape[1], x)
            q = q + self.content_bias
        if isinstance(bias, Mask):
            bias = bias.scores
        elif 0 < self.window < q.shape[2]:
            near = causal(q.shape[2], x, self.window)
            bias = near if bias is None else bias + near
        if self.sinks is not None:
            k, v, bias = self.with_sinks(q, k, v, bias)
        # No name for the core's result: it is freed where flatten copies it.
        result = self.core(q, k, v, bias).transpose(1, 2).flatten(2)
        if self.gate is not None:
            result = self.gated(result, self.gate(x).sigmoid())
        elif gate is not None:
            result = self.gated(result, gate.sigmoid())
        if self.norm is not None:
            result = self.norm(result)
        return self.output(result)

    def gated(self, result, gate):
        """Multiply the result (batch, length, n_head · d_head) by a gate of channels or heads."""
        if not self.gate_per_head:
            return result * gate
        return (result.unflatten(2, (self.n_head, self.d_head)) * gate.unsqueeze(3)).flatten(2)

    def distance_scores(self, q, x):
        """Compute terms (b) and (d) of Dai et al. 2019, §3.3.

        Queries against projected sinusoids of the distance, (batch, n_head, length, length).
        """
        distance = self.position(sinusoids(x.shape[1], x.shape[2], x))
        distance = distance.unflatten(1, (self.n_head, self.d_head)).transpose(0, 1)
        scores = (q + self.position_bias) @ distance.transpose(-1, -2)
        return shift(scores) * self.d_head**-0.5

    def with_sinks(self, q, k, v, bias):
        """One more key that every query of a head scores the same, and whose value is zero."""
        if bias is None and q.shape[2] > 1:
            bias = causal(q.shape[2], q)
        elif bias is None:
            bias = q.new_zeros(1, k.shape[2])
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        bias = bias.expand(*bias.shape[:-3], self.n_head, *bias.shape[-2:])
        sinks = self.sinks[:, None, None].expand(*bias.shape[:-1], 1)
        return k, v, torch.cat((bias, sinks), dim=-1)


def make(a) -> Attention:
    """Attention of all tokens before; families without positions have no `position`."""
    return Attention(a, getattr(a, "position", "none"))


def make_head_norm(a, n_head: int) -> nn.Module | None:
    """Build the norm of (batch, length, n_head, d_head) that `qk_norm` names."""
    if a.qk_norm == "none":
        return None
    if a.qk_norm == "separate":
        return SeparateNorm(a, n_head)
    if a.qk_norm == "joint":
        return make_norm(a, n_head * a.d_head, a.qk_norm_bias, of_all_heads=True)
    return make_norm(a, a.d_head, a.qk_norm_bias)


class SeparateNorm(nn.Module):
    """Normalises each head separately, with its own scale (and shift)."""

    def __init__(self, a, n_head: int):
        super().__init__()
        shape = (n_head, a.d_head)
        self.rms = a.norm == "rmsnorm"
        self.weight = nn.Parameter(torch.empty(shape)) if a.norm_scale else None
        self.bias = nn.Parameter(torch.empty(shape)) if a.qk_norm_bias else None

    def forward(self, x):
        normalise = F.rms_norm if self.rms else F.layer_norm
        x = normalise(x, x.shape[-1:])
        if self.weight is not None:
            x = x * self.weight
        return x if self.bias is None else x + self.bias
