"""Multi-head attention within one sequence, or from one to another."""

from typing import Any

from torch import nn
from torch.nn import functional as F

from modelbudget.modules.cache import Cache, Window
from modelbudget.modules.rope import rotate
from modelbudget.modules.scaled_dot_product import heads_of


class MultiHead(nn.Module):
    """States (batch, length, d_model) to the same shape.

    `rotary` turns queries and keys by their positions; without `scaled`, scores are not divided
    by √d_head, as in T5, which puts that into its initial values.
    """

    def __init__(self, a, rotary: bool = False, scaled: bool = True, window: int = 0):
        super().__init__()
        bias = a.attention_bias
        self.query = nn.Linear(a.d_model, a.n_head * a.d_head, bias=bias)
        self.key = nn.Linear(a.d_model, a.n_head * a.d_head, bias=bias and a.key_bias)
        self.value = nn.Linear(a.d_model, a.n_head * a.d_value, bias=bias)
        self.output = nn.Linear(a.n_head * a.d_value, a.d_model, bias=bias)
        self.n_head, self.d_head, self.d_value = a.n_head, a.d_head, a.d_value
        self.rotary, self.window = rotary, window
        self.scale = a.d_head**-0.5 if scaled else 1.0

    def forward(self, x, source=None, causal=False, mask=None):
        """`source`: (batch, source length, d_model), the states to look at; x itself if none.

        `mask`: true where a query may look, or a number to add to each score; broadcast to
        (batch, n_head, length, source length).
        """
        source = x if source is None else source
        q, k, v = (self.split(y) for y in (self.query(x), self.key(source), self.value(source)))
        if self.rotary:
            q, k = rotate(q, self.d_head), rotate(k, self.d_head)
        return self.attend(q, k, v, causal and mask is None, mask)

    def attend(self, q, k, v, causal, mask):
        """(batch, heads, length, width) to (batch, length, d_model)."""
        x = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=self.scale
        )
        return self.output(x.transpose(1, 2).flatten(2))

    def split(self, x):
        return heads_of(x, self.n_head)


class CachedMultiHead(MultiHead):
    """The same in a decoder, which keeps keys and values: of its tokens, or of a source.

    Those of a source are computed with the first token alone; with a window the last ones are kept.
    """

    cache: Any = None
    n_kept = 0
    """Tokens that a cache keeps; 0: as many as it is made for."""

    def make_cache(self, batch: int, length: int, like) -> Cache:
        widths = [(self.n_head, self.d_head), (self.n_head, self.d_value)]
        if self.window:
            return Window(widths, batch, length, like, self.window)
        return Cache(widths, batch, self.n_kept or length, like)

    def forward(self, x, source=None, causal=False, mask=None):
        if self.cache is None:
            return super().forward(x, source, causal, mask)
        q = self.split(self.query(x))
        if source is not None and self.cache.length:
            k, v = self.cache.tensors
        else:
            source = x if source is None else source
            k, v = self.split(self.key(source)), self.split(self.value(source))
            if self.rotary:
                start = self.cache.length
                q, k = rotate(q, self.d_head, start), rotate(k, self.d_head, start)
            k, v = self.cache.append(k, v)
        return self.attend(q, k, v, causal and mask is None and x.shape[1] > 1, mask)
