"""State space language models."""

from torch import nn

from modelbudget.modules.embedding import padded
from modelbudget.modules.lm_head import make_head
from modelbudget.modules.mamba2_block import StateSpaceDualMixer
from modelbudget.modules.mamba_block import SelectiveScanMixer
from modelbudget.modules.norm import make_norm


class StateSpaceLayer(nn.Module):
    """States (batch, length, d_model) to states of the same shape."""

    def __init__(self, a, mixer: nn.Module):
        super().__init__()
        self.norm = make_norm(a)
        self.mixer = mixer

    def forward(self, x):
        return x + self.mixer(self.norm(x))


class StateSpaceModel(nn.Module):
    """Tokens (batch, length) to logits (batch, length, n_vocab)."""

    def __init__(self, a, mixer: type[nn.Module]):
        super().__init__()
        self.embedding = nn.ModuleDict({"token": nn.Embedding(padded(a), a.d_model)})
        self.layer = nn.ModuleList(StateSpaceLayer(a, mixer(a)) for _ in range(a.n_layer))
        self.norm = nn.ModuleDict({"final": make_norm(a)})
        self.head = make_head(a, self.embedding["token"], a.d_model)

    def forward(self, tokens):
        x = self.embedding["token"](tokens)
        for layer in self.layer:
            x = layer(x)
        return self.head(self.norm["final"](x))


class SelectiveScanModel(StateSpaceModel):
    """Mamba."""

    def __init__(self, a):
        super().__init__(a, SelectiveScanMixer)


class StateSpaceDualModel(StateSpaceModel):
    """Mamba-2."""

    def __init__(self, a):
        super().__init__(a, StateSpaceDualMixer)
