"""The hybrid of recurrent cells and attention."""

from torch import nn

from modelbudget.modules.embedding import TokenEmbedding
from modelbudget.modules.feed_forward.mlp import MLP
from modelbudget.modules.language_model import LanguageModel
from modelbudget.modules.lm_head import make_head
from modelbudget.modules.mixers.attention import Attention
from modelbudget.modules.mixers.channel_rnn import ChannelRNN
from modelbudget.modules.norm import make_norm


class HybridLayer(nn.Module):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a):
        super().__init__()
        self.channel_rnn = ChannelRNN(a)
        self.attention = Attention(a)
        self.mlp = MLP(a)
        self.norm = nn.ModuleDict(
            {name: make_norm(a) for name in ("channel_rnn", "attention", "mlp")}
        )

    def forward(self, x):
        # There are no position embeddings; the cells give attention the order of the tokens.
        y = self.channel_rnn(self.norm["channel_rnn"](x))
        x = x + self.attention(self.norm["attention"](y))
        return x + self.mlp(self.norm["mlp"](x))


def hybrid_model(a) -> LanguageModel:
    embedding = TokenEmbedding(a)
    layers = [HybridLayer(a) for _ in range(a.n_layer)]
    return LanguageModel(embedding, layers, make_head(a, embedding.token, a.d_model))
