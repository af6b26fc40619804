"""A layer: a mixer and a feed-forward part with their norms, in sequence or in parallel."""

from torch import nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from modelbudget.modules.feed_forward import feed_forward
from modelbudget.modules.kept_results import kept_results
from modelbudget.modules.mixers import mixers
from modelbudget.modules.norm import make_norm
from modelbudget.modules.position import Mask


class Layer(nn.Module):
    """States (batch, length, d_model) to states of the same shape.

    The parts are attributes with the names of their components; `none` leaves one out. With
    `recompute`, all but the input is computed again in the backward pass instead of saved (Chen et
    al. 2016); with `saves_mask`, the model's mask is saved, too, and with `keeps_results` those of
    some operations (`kept_results`).
    """

    def __init__(self, a, mixer: str = "attention", mlp: str = "mlp"):
        super().__init__()
        chosen = (mixer, mixers()), (mlp, feed_forward())
        files = {name: of_name[name] for name, of_name in chosen if name != "none"}
        self.parts = [getattr(file, "NAME", name) for name, file in files.items()]
        for name, file in zip(self.parts, files.values(), strict=True):
            self.add_module(name, file.make(a))
        self.parallel, self.placement = a.parallel, a.norm_placement
        names = ["shared"] if a.parallel and a.shared_norm else list(self.parts)
        if a.norm_placement == "both":
            names += [f"{name}_output" for name in self.parts]
        elif getattr(a, "moe_output_norm", False) and "moe" in self.parts:
            names.append("moe_output")
        self.norm = nn.ModuleDict({name: make_norm(a) for name in names})
        self.dropout = nn.Dropout(0.0)
        self.recompute = self.saves_mask = self.keeps_results = False

    def forward(self, x, bias=None, rotation=None):
        if self.recompute and self.saves_mask and isinstance(bias, Mask):

            def masked(x, scores):
                return self.compute(x, Mask(scores), rotation)

            return checkpoint(masked, x, bias.scores, use_reentrant=False)
        if self.recompute:
            contexts = kept_results if self.keeps_results else noop_context_fn
            return checkpoint(
                self.compute, x, bias, rotation, use_reentrant=False, context_fn=contexts
            )
        return self.compute(x, bias, rotation)

    def compute(self, x, *positions):
        """Compute the layer; `positions`: the bias of scores and the tables of RoPE, or None."""
        if not self.parallel:
            for name in self.parts:
                x = self.add(name, x, *positions)
            return x
        mixer, mlp = self.parts
        if "shared" in self.norm:
            for_mixer = for_mlp = self.norm["shared"](x)
        else:
            for_mixer, for_mlp = self.norm[mixer](x), self.norm[mlp](x)
        return (
            x
            + self.dropout(self.run(mixer, for_mixer, *positions))
            + self.dropout(self.run(mlp, for_mlp, *positions))
        )

    def add(self, name: str, x, *positions):
        """Compute the residual sum with one part, with norms according to `norm_placement`."""
        norm, dropout = self.norm[name], self.dropout
        match self.placement:
            case "post":
                return norm(x + dropout(self.run(name, x, *positions)))
            case "output":
                return x + norm(dropout(self.run(name, x, *positions)))
        change = dropout(self.run(name, norm(x), *positions))
        if (name_after := f"{name}_output") in self.norm:
            change = self.norm[name_after](change)
        return x + change

    def run(self, name: str, x, *positions):
        part = getattr(self, name)
        return part(x, *positions) if getattr(part, "reads_positions", False) else part(x)
