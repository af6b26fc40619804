"""State space language models."""

from torch import nn

from modelbudget.modules.embedding import TokenEmbedding
from modelbudget.modules.language_model import LanguageModel
from modelbudget.modules.lm_head import make_head
from modelbudget.modules.norm import make_norm


class StateSpaceLayer(nn.Module):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a, mixer: nn.Module):
        super().__init__()
        self.norm = make_norm(a)
        self.mixer = mixer

    def forward(self, x):
        return x + self.mixer(self.norm(x))


def state_space_model(a, mixer: type[nn.Module]) -> LanguageModel:
    """Build a model whose layers have this mixer."""
    embedding = TokenEmbedding(a)
    layers = [StateSpaceLayer(a, mixer(a)) for _ in range(a.n_layer)]
    return LanguageModel(embedding, layers, make_head(a, embedding.token, a.d_model), make_norm(a))
