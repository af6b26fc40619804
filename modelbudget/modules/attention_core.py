"""The core of attention: what each query finds among the keys."""

from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class ScaledDotProductAttention(nn.Module):
    """Queries (batch, n_head, length, width), keys and values (batch, n_kv_head, length, width) to
    (batch, n_head, length, width of a value). Causal, unless `bias` says what to add to the scores;
    a single query sees all keys.

    Where `recompute` is set, scores are computed again in the backward pass instead of kept
    (Korthikanti et al. 2022, §5).
    """

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.0)  # its rate goes into the kernel
        self.recompute = False

    def forward(self, q, k, v, bias=None):
        if self.recompute:
            return checkpoint(self.attend, q, k, v, bias, use_reentrant=False)
        return self.attend(q, k, v, bias)

    def attend(self, q, k, v, bias):
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            bias,
            dropout_p=self.dropout.p if self.training else 0.0,
            is_causal=bias is None and q.shape[2] > 1,
            enable_gqa=q.shape[1] != k.shape[1],
        )
