"""The recurrent–transformer hybrid."""

from torch import nn

from modelbudget.modules.attention import Attention
from modelbudget.modules.channel_rnn import ChannelRNN
from modelbudget.modules.embedding import Head, TokenEmbedding
from modelbudget.modules.mlp import MLP
from modelbudget.modules.norm import make_norm


class HybridLayer(nn.Module):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a):
        super().__init__()
        self.recurrent = ChannelRNN(a)
        self.attention = Attention(a)
        self.mlp = MLP(a)
        self.norm = nn.ModuleDict(
            {name: make_norm(a) for name in ("recurrent", "attention", "mlp")}
        )

    def forward(self, x):
        # The cells put order into the states that attention sees; there are no positions.
        y = self.recurrent(self.norm["recurrent"](x))
        x = x + self.attention(self.norm["attention"](y))
        return x + self.mlp(self.norm["mlp"](x))


class HybridModel(nn.Module):
    """Tokens (batch, length) to logits (batch, length, n_vocab)."""

    def __init__(self, a):
        super().__init__()
        self.embedding = TokenEmbedding(a)
        self.layer = nn.ModuleList(HybridLayer(a) for _ in range(a.n_layer))
        self.head = Head(a, self.embedding.token)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layer:
            x = layer(x)
        return self.head(x)
