"""Token and position embeddings, and the head, tied or not."""

import torch
from torch import nn
from torch.nn import functional as F


class TokenEmbedding(nn.Module):
    """Tokens (batch, length) to states (batch, length, d_model)."""

    def __init__(self, a):
        super().__init__()
        self.token = nn.Embedding(a.n_vocab, a.d_model)

    def forward(self, tokens):
        return self.token(tokens)


class Embedding(TokenEmbedding):
    """As TokenEmbedding, with learned positions added where the architecture has them."""

    def __init__(self, a):
        super().__init__(a)
        learned = a.position == "learned"
        self.position = nn.Embedding(a.n_ctx, a.d_model) if learned else None

    def forward(self, tokens):
        x = self.token(tokens)
        if self.position is not None:
            x = x + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return x


class Head(nn.Module):
    """States (batch, length, d_model) to logits (batch, length, n_vocab).

    Tied means the very Parameter of the token embedding, not a copy: whoever moves or casts this
    module moves both. Not an nn.Linear, which would allocate a matrix only to drop it.
    """

    def __init__(self, a, token: nn.Embedding):
        super().__init__()
        self.weight = token.weight if a.tied else nn.Parameter(torch.empty(a.n_vocab, a.d_model))
        self.bias = nn.Parameter(torch.empty(a.n_vocab)) if a.head_bias else None
        self.tied = a.tied

    def reset_parameters(self):
        if not self.tied:
            nn.init.normal_(self.weight, std=0.02)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)
