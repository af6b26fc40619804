"""A mixture of experts."""

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.mlp import ACTIVATIONS, MLP


class Router(nn.Module):
    """Tokens (n, d_model) to the weights and the numbers of their experts, both (n, chosen).

    Weights are probabilities over all experts, so that the router learns even where a token goes
    through one expert alone (Fedus et al. 2022, eq. 1 and 2).
    """

    def __init__(self, a):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(a.n_expert, a.d_model))
        # A bias that only moves the choice has no gradient: whoever trains sets it by the load.
        self.selects = a.router_bias == "selection"
        bias = nn.Parameter(torch.empty(a.n_expert), requires_grad=not self.selects)
        self.bias = None if a.router_bias == "none" else bias
        self.n_expert_per_token = a.n_expert_per_token

    def reset_parameters(self):
        nn.init.normal_(self.weight, std=0.02)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, tokens):
        logits = F.linear(tokens, self.weight, None if self.selects else self.bias)
        weights = logits.softmax(-1)
        ranks = weights.detach() + self.bias if self.selects else weights
        chosen = ranks.topk(self.n_expert_per_token, dim=-1).indices
        return weights.gather(-1, chosen), chosen


class ExpertLinear(nn.Module):
    """A linear layer for each expert, stacked: one tensor whatever the number of experts."""

    def __init__(self, n_expert: int, d_in: int, d_out: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_expert, d_out, d_in))
        self.bias = nn.Parameter(torch.empty(n_expert, d_out)) if bias else None

    def reset_parameters(self):
        bound = self.weight.shape[-1] ** -0.5  # as torch.nn.Linear
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x, expert: int):
        return F.linear(x, self.weight[expert], None if self.bias is None else self.bias[expert])


class Experts(nn.Module):
    """States (batch, length, d_model) to states of the same shape, each token through its own
    experts. No token is dropped.
    """

    def __init__(self, a):
        super().__init__()
        self.n_expert = a.n_expert
        self.router = Router(a)
        up = (a.n_expert, a.d_model, a.d_expert, a.up_bias)
        self.gate = ExpertLinear(*up) if a.gated else None
        self.up = ExpertLinear(*up)
        self.down = ExpertLinear(a.n_expert, a.d_expert, a.d_model, a.down_bias)
        self.activation = ACTIVATIONS[a.activation]
        self.shared = MLP(a, a.d_shared) if a.d_shared else None
        self.shared_gate = nn.Linear(a.d_model, 1, bias=False) if a.shared_gate else None

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens)
        order = chosen.flatten().argsort()  # (token, choice) pairs, by expert
        owner = order // chosen.shape[1]
        parts = tokens[owner].split(self.loads(chosen))
        outputs = [self.expert(i, part) for i, part in enumerate(parts) if len(part)]
        weighted = torch.cat(outputs) * weights.flatten()[order].unsqueeze(1)
        y = torch.zeros_like(tokens).index_add(0, owner, weighted)
        if self.shared is not None:
            y = y + self.always(tokens)
        return y.view_as(x)

    def expert(self, i: int, x):
        hidden = self.up(x, i)
        if self.gate is None:
            return self.down(self.activation(hidden), i)
        return self.down(self.activation(self.gate(x, i)) * hidden, i)

    def always(self, tokens):
        """What the shared experts say, weighed by their gate if they have one."""
        y = self.shared(tokens)
        return y if self.shared_gate is None else y * self.shared_gate(tokens).sigmoid()

    def loads(self, chosen) -> list[int]:
        """Tokens for each expert. Without storage there are no choices to count: tokens are dealt
        out evenly, which changes no sum over the experts.
        """
        if chosen.is_meta:
            each, more = divmod(chosen.numel(), self.n_expert)
            return [each + (i < more) for i in range(self.n_expert)]
        return chosen.flatten().bincount(minlength=self.n_expert).tolist()
