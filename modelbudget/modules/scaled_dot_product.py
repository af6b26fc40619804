"""Scaled dot-product attention."""

from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def heads_of(x, n_head: int, width: int = -1, norm: nn.Module | None = None):
    """(batch, length, n_head · width) to (batch, n_head, length, width), normalised by head."""
    x = x.unflatten(2, (n_head, width))
    return (x if norm is None else norm(x)).transpose(1, 2)


class ScaledDotProductAttention(nn.Module):
    """Scaled dot-product attention, causal unless a `bias` is added to the scores.

    Queries (batch, n_head, length, width), keys and values (batch, n_kv_head, length, width) to
    (batch, n_head, length, width of a value). A single query attends to all keys.

    Of several query heads that share keys and values, memory-efficient attention takes none: these
    are repeated for it where the run's `kernel` is `efficient`, and where it is `flash` and there
    is a bias, which FlashAttention does not take.

    With `recompute`, scores are computed again in the backward pass instead of saved (Korthikanti
    et al. 2022, §5).
    """

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.0)  # its rate goes into the kernel
        self.recompute = False
        self.kernel = "math"

    def forward(self, q, k, v, bias=None):
        if self.recompute:
            return checkpoint(self.attend, q, k, v, bias, use_reentrant=False)
        return self.attend(q, k, v, bias)

    def attend(self, q, k, v, bias):
        is_efficient = self.kernel == "efficient" or (self.kernel == "flash" and bias is not None)
        if is_efficient and q.shape[1] != k.shape[1]:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            bias,
            dropout_p=self.dropout.p if self.training else 0.0,
            is_causal=bias is None and q.shape[2] > 1,
            enable_gqa=q.shape[1] != k.shape[1],
        )
