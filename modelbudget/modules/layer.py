"""A transformer layer: a mixer and an MLP with their norms, in sequence or in parallel."""

from torch import nn
from torch.utils.checkpoint import checkpoint

from modelbudget.modules.attention import Attention
from modelbudget.modules.channel_rnn import ChannelRNN
from modelbudget.modules.mla import LatentAttention
from modelbudget.modules.mlp import MLP
from modelbudget.modules.moe import Experts
from modelbudget.modules.norm import make_norm

PARTS = {
    "latent": LatentAttention,
    "recurrent": ChannelRNN,
    "mlp": MLP,
    "experts": Experts,
}


class Layer(nn.Module):
    """States (batch, length, d_model) to states of the same shape.

    The layer's parts bear the names of their kinds, `local` attention that of attention; `none`
    leaves one out. Where `recompute` is
    set, all but the input is computed again in the backward pass instead of kept (Chen et al.
    2016).
    """

    def __init__(self, a, mixer: str = "attention", mlp: str = "mlp", position: str = "none"):
        super().__init__()
        window = a.window if mixer == "local" else 0
        mixer = "attention" if mixer == "local" else mixer
        self.parts = [name for name in (mixer, mlp) if name != "none"]
        for name in self.parts:
            part = Attention(a, position, window) if name == "attention" else PARTS[name](a)
            self.add_module(name, part)
        self.parallel, self.placement = a.parallel, a.norm_placement
        names = ["shared"] if a.parallel and a.shared_norm else list(self.parts)
        if a.norm_placement == "both":
            names += [f"{name}_output" for name in self.parts]
        self.norm = nn.ModuleDict({name: make_norm(a) for name in names})
        self.dropout = nn.Dropout(0.0)
        self.recompute = False

    def forward(self, x, bias=None):
        if self.recompute:
            return checkpoint(self.compute, x, bias, use_reentrant=False)
        return self.compute(x, bias)

    def compute(self, x, bias):
        if not self.parallel:
            for name in self.parts:
                x = self.add(name, x, bias)
            return x
        mixer, mlp = self.parts
        if "shared" in self.norm:
            for_mixer = for_mlp = self.norm["shared"](x)
        else:
            for_mixer, for_mlp = self.norm[mixer](x), self.norm[mlp](x)
        return x + self.run(mixer, for_mixer, bias) + self.run(mlp, for_mlp, bias)

    def add(self, name: str, x, bias):
        """One part after another, with its norm where `norm_placement` says."""
        norm = self.norm[name]
        match self.placement:
            case "pre":
                return x + self.run(name, norm(x), bias)
            case "post":
                return norm(x + self.run(name, x, bias))
            case "output":
                return x + norm(self.run(name, x, bias))
            case "both":
                return x + self.norm[f"{name}_output"](self.run(name, norm(x), bias))

    def run(self, name: str, x, bias):
        part = getattr(self, name)
        x = part(x, bias) if name == "attention" else part(x)
        return self.dropout(x)
