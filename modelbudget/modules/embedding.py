"""Token and position embeddings, and the head, tied or not."""

import math
from collections.abc import Callable

import torch
from torch import nn

from modelbudget.modules.cache import Cache
from modelbudget.modules.position import DistanceBuckets, alibi, causal, sinusoids
from modelbudget.modules.rope import Rotation, frequencies, rotation


class TokenEmbedding(nn.Module):
    """Tokens (batch, length) to states (batch, length, d_model)."""

    def __init__(self, a):
        super().__init__()
        self.token = nn.Embedding(padded(a), a.d_model)

    def forward(self, tokens):
        return self.token(tokens)


class RotaryPositions(nn.Module):
    """What gives the layers after it the tables of RoPE, or positions, if they do not make them.

    `d_rotary`: channels of queries and keys of attention; other mixers have tables of their own.
    """

    def __init__(self, d_rotary: int):
        super().__init__()
        self.d_rotary = d_rotary
        self.register_buffer("frequencies", None, persistent=False)
        self.gives_places = self.exact_tables = False
        self.cache: Cache | None = None
        self.start = 0

    def share_rotation(self, shared: bool, device: torch.device) -> None:
        """Let all layers share the tables of RoPE.

        The frequencies are kept, once as they are used and once as they were before any scaling.
        """
        if not shared:
            self.frequencies = None
        elif self.d_rotary and self.frequencies is None:
            used = frequencies(self.d_rotary, device).float()
            self.frequencies = torch.stack((used, used))

    def rotation(self, x, length: int) -> Rotation | None:
        """Return RoPE's tables of `length` tokens, if all layers share them.

        Or, with `gives_places`, only the positions, (batch, length).
        """
        start = self.cache.length - length if self.cache else self.start
        if self.gives_places:
            places = torch.arange(start, start + length, device=x.device)
            return Rotation(places.expand(len(x), length).contiguous())
        if self.frequencies is None:
            return None
        return rotation(length, self.frequencies[0], x, start, self.exact_tables)


class Embedding(RotaryPositions):
    """Tokens (batch, length) to states (batch, length, d_model).

    Token embedding, factorised or not, and position embedding where the architecture adds one here.
    """

    def __init__(self, a):
        super().__init__((a.d_rotary or a.d_head) if a.position == "rotary" else 0)
        self.token = nn.Embedding(padded(a) + a.n_input_token, a.d_emb or a.d_model)
        self.projection = nn.Linear(a.d_emb, a.d_model, bias=False) if a.d_emb else None
        self.encoding, self.n_head, self.d_model = a.position, a.n_head, a.d_model
        if a.position == "learned":
            self.position = nn.Embedding(a.n_ctx + a.position_offset, a.d_model)
        elif a.position == "buckets":
            self.position = DistanceBuckets(a.n_bucket, a.n_head)
        self.own_heads, self.parts = slice(None), 1
        """The heads of this device if several share them, and the parts of the length of states."""
        self.offset = a.position_offset
        self.register_buffer("scale", None, persistent=False)
        self.requires_gradient = False
        """Whether its output is a leaf, as by transformers' enable_input_require_grads."""

    def make_cache(self, batch: int, length: int, like) -> Cache:
        """Return a counter of the tokens so far: the position of the next token."""
        return Cache([], batch, length, like)

    def forward(self, tokens, hold: Callable[[list], None] | None = None):
        """Compute the states. `hold` receives what they are the sum of, and their positions.

        It is no list, which FSDP2 would copy.
        """
        x = self.token(tokens)
        if self.scale is not None:
            x = x * self.scale
        if self.requires_gradient and torch.is_grad_enabled():
            x.requires_grad_(True)
        if self.projection is not None:
            x = self.projection(x)
        summands, length, places = [x], tokens.shape[1], None
        start = self.cache.advance(length) if self.cache else self.start
        if self.encoding == "learned":
            places = self.offset + torch.arange(start, start + length, device=tokens.device)
            if hold is not None:
                places = places.unsqueeze(0)  # classes of transformers have those of one sequence
            summands.append(self.position(places))
        elif self.encoding == "sinusoidal":
            summands.append(sinusoids(length, x.shape[2], x, start))
        if hold is not None:
            hold([*summands, places])
        return sum(summands[1:], start=x)

    def scale_rows(self, scaled: bool) -> None:
        """Multiply the token embedding by √d_model, or not; a buffer that is there stays."""
        if not scaled:
            self.scale = None
        elif self.scale is None:
            self.scale = self.token.weight.new_tensor(math.sqrt(self.d_model))

    def bias(self, x):
        """Return the bias of all layers' attention scores: (n_head, queries, keys), or None."""
        length = self.parts * x.shape[1]
        start = self.cache.length - length if self.cache else 0
        if self.encoding == "alibi":
            bias = alibi(self.n_head, length, x, self.own_heads, start)
            return bias + causal(length, x, start=start)
        if self.encoding == "buckets":
            return self.position(length, start) + causal(length, x, start=start)
        return None


def padded(a) -> int:
    """Rows of the token embedding: the vocabulary, padded to a multiple."""
    return math.ceil(a.n_vocab / a.vocab_multiple) * a.vocab_multiple
