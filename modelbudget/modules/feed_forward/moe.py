"""Mixture of experts (MoE)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from modelbudget.modules.expert_changes import changed
from modelbudget.modules.feed_forward.mlp import MLP, activation
from modelbudget.modules.joined import put_gate_up


def unchanged(x):
    return x


class Router(nn.Module):
    """Tokens (n, d_model) to the weights and the numbers of their experts, both (n, chosen).

    Weights are probabilities over all experts, so that the router learns even where a token goes
    through one expert alone (Fedus et al. 2022, eq. 1 and 2). `normalised`, they are computed in at
    least float32 and divided by their sum (Jiang et al. 2024, §2.1).
    """

    def __init__(self, a):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(a.n_expert, a.d_model))
        # A bias that only changes the choice has no gradient; training sets it by the load.
        self.selects = a.router_bias == "selection"
        bias = nn.Parameter(torch.empty(a.n_expert), requires_grad=not self.selects)
        self.bias: Any = None if a.router_bias == "none" else bias
        self.n_expert_per_token = a.n_expert_per_token
        self.change: Any = None  # of an adapter, next to the weight

    def forward(self, tokens, normalised: bool = False):
        weight = self.weight if self.change is None else self.change.read()
        logits = F.linear(tokens, weight, None if self.selects else self.bias)
        if normalised:
            return self.normalise(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        weights = logits.softmax(-1)
        ranks = weights.detach() + self.bias if self.selects else weights
        chosen = ranks.topk(self.n_expert_per_token, dim=-1).indices
        return weights.gather(-1, chosen), chosen

    def normalise(self, logits) -> tuple:
        """Return weights with a sum of 1. Raises ValueError if a bias selects the experts."""
        if self.selects:
            raise ValueError("expert_kernel = 'gathered': router_bias: selection is not known")
        weights, chosen = logits.softmax(-1).topk(self.n_expert_per_token, dim=-1)
        return weights / weights.sum(-1, keepdim=True), chosen


class Grouped(torch.autograd.Function):
    """Grouped matrix product: rows times the matrix of their expert, plus its bias.

    The first `loads[0]` rows belong to the first expert, and so on.

    As a GPU's grouped product does, backward writes each expert's gradient into its slice of the
    stack's. Autograd of an indexed stack would allocate a gradient of the whole stack for each
    expert. `ends`, if given, are the numbers of each expert's last row + 1, which such a product
    saves too.
    """

    @staticmethod
    def forward(ctx, rows, weight, bias, loads: list[int], ends=None):
        ctx.save_for_backward(rows if ctx.needs_input_grad[1] else None, weight, ends)
        ctx.loads = loads
        out = rows.new_empty(len(rows), weight.shape[1])
        for i, (part, place) in enumerate(zip(rows.split(loads), out.split(loads), strict=True)):
            if bias is None:
                torch.mm(part, weight[i].t(), out=place)
            else:
                torch.addmm(bias[i], part, weight[i].t(), out=place)
        return out

    @staticmethod
    def backward(ctx, gradient):
        rows, weight, _ = ctx.saved_tensors
        wants_rows, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        of_rows = gradient.new_empty(len(gradient), weight.shape[2]) if wants_rows else None
        of_weight = torch.empty_like(weight) if wants_weight else None
        of_bias = weight.new_empty(weight.shape[:2]) if wants_bias else None
        first = 0
        for i, of_part in enumerate(gradient.split(ctx.loads)):
            place = slice(first, first := first + len(of_part))
            if of_rows is not None:
                torch.mm(of_part, weight[i], out=of_rows[place])
            if of_weight is not None:
                torch.mm(of_part.t(), rows[place], out=of_weight[i])
            if of_bias is not None:
                torch.sum(of_part, 0, out=of_bias[i])
        return of_rows, of_weight, of_bias, None, None


class ExpertLinear(nn.Module):
    """A linear layer for each expert, stacked: one tensor whatever the number of experts."""

    def __init__(self, n_expert: int, d_in: int, d_out: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_expert, d_out, d_in))
        self.bias = nn.Parameter(torch.empty(n_expert, d_out)) if bias else None
        self.change: Any = None

    def forward(self, rows, loads: list[int], ends=None):
        weight = self.weight if self.change is None else self.change.read()
        return Grouped.apply(rows, weight, self.bias, loads, ends)


class MoE(nn.Module):
    """Mixture of experts: each token is processed by the experts that the router selects.

    States (batch, length, d_model) to states of the same shape. No token is dropped.
    """

    def __init__(self, a, router: nn.Module | None = None):
        super().__init__()
        self.n_expert = a.n_expert
        self.bias = nn.Parameter(torch.empty(a.d_model)) if a.moe_bias else None
        self.router: Any = Router(a) if router is None else router
        up = (a.n_expert, a.d_model, a.d_expert, a.up_bias)
        self.gate: Any = ExpertLinear(*up) if a.gated else None
        self.up: Any = ExpertLinear(*up)
        self.down = ExpertLinear(a.n_expert, a.d_expert, a.d_model, a.down_bias)
        self.activation = activation(a.activation)
        self.shared: Any = MLP(a, a.d_shared) if a.d_shared else None
        self.shared_gate = nn.Linear(a.d_model, 1, bias=False) if a.shared_gate else None
        self.gate_up: Any = None
        self.gathers = False
        # Of devices that divide each expert: what sums a gradient, and what sums their terms.
        self.read: Callable = unchanged
        self.sum_terms: Callable = unchanged

    def gather(self, gathers: bool, packs: bool = False) -> None:
        """Make one stack of those of gate and up, once and for all if `gathers` or `packs`."""
        self.gathers = self.gathers or (gathers and self.gate is not None)
        if (gathers or packs) and self.gate_up is None and self.gate is not None:
            parts = [self.gate, self.up]
            joined = ExpertLinear(self.n_expert, 0, 0, bias=False)
            joined.weight = nn.Parameter(torch.cat([p.weight.detach() for p in parts], 1))
            if self.up.bias is not None:
                joined.bias = nn.Parameter(torch.cat([p.bias.detach() for p in parts], 1))
            put_gate_up(self, joined)

    def forward(self, x, routed_by=None):
        """`routed_by`: the states that the router reads, where they are others."""
        tokens = x.flatten(0, 1)
        if self.gathers:
            y = self.gathered(tokens)
        else:
            with changed(self.router):
                of_router = tokens if routed_by is None else routed_by.flatten(0, 1)
                weights, chosen = self.router(of_router)
            with changed(self.down, self.up if self.gate_up is None else self.gate_up):
                order = chosen.flatten().argsort()  # (token, choice) pairs, by expert
                owner = order // chosen.shape[1]
                weights = self.read(weights)
                outputs = self.routed(self.read(tokens)[owner], loads_of(chosen, self.n_expert))
                weighted = outputs * weights.flatten()[order].unsqueeze(1)
                y = self.sum_terms(torch.zeros_like(tokens).index_add(0, owner, weighted))
        if self.shared is not None:
            y = y + self.always(tokens)
        y = y.view_as(x)
        return y if self.bias is None else y + self.bias

    def gathered(self, tokens):
        with changed(self.router):
            weights, chosen = self.router(tokens, normalised=True)
        with changed(self.down, self.gate_up):
            return self.gathered_outputs(tokens, weights, chosen)

    def gathered_outputs(self, tokens, weights, chosen):
        """Sum the weighted outputs of the experts, gathered in the order of the tokens."""
        experts, order = chosen.flatten().sort()
        weights = self.read(weights)
        rows = self.read(tokens)[order // chosen.shape[1]]
        weights = weights.flatten()[order]
        numbers = torch.arange(self.n_expert, device=chosen.device)
        ends = torch.searchsorted(experts, numbers, right=True, out_int32=True)
        loads = loads_of(chosen, self.n_expert)
        gate, up = self.gate_up(rows, loads, ends).chunk(2, dim=-1)
        outputs = self.down(self.activation(gate) * up, loads, ends)
        weighted = outputs * weights.unsqueeze(1)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        y = weighted[places].unflatten(0, chosen.shape).sum(1).to(tokens.dtype)
        return self.sum_terms(y)

    def routed(self, rows, loads: list[int]):
        """Compute the experts' outputs for rows sorted by expert."""
        if self.gate_up is not None:
            gate, up = self.gate_up(rows, loads).chunk(2, dim=-1)
            return self.down(self.activation(gate) * up, loads)
        if self.gate is None:
            return self.down(self.activation(self.up(rows, loads)), loads)
        gate = self.activation(self.gate(rows, loads))
        return self.down(gate * self.up(rows, loads), loads)

    def always(self, tokens):
        """Compute the shared experts' output, scaled by their gate if they have one."""
        y = self.shared(tokens)
        return y if self.shared_gate is None else y * self.shared_gate(tokens).sigmoid()


def loads_of(chosen, n_expert: int) -> list[int]:
    """Count the rows of each expert.

    On the meta device there are no choices to count: rows are distributed evenly, which changes no
    sum over the experts.
    """
    if chosen.is_meta:
        return evenly(chosen.numel(), n_expert)
    return chosen.flatten().bincount(minlength=n_expert).tolist()


def evenly(n: int, n_part: int) -> list[int]:
    """Divide a number into parts that differ by one at most, the larger ones first."""
    each, more = divmod(n, n_part)
    return [each + (i < more) for i in range(n_part)]


make = MoE
