"""Transformer blocks that several layers share, each use with weights of its own (Zamba)."""

from types import SimpleNamespace
from typing import Literal

from modelbudget.architecture.arithmetic import largest
from modelbudget.architecture.base import Architecture, Count, Parts, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import kv_cache, multi_head, norm, rope, scaled_dot_product
from modelbudget.components.contract import Values
from modelbudget.components.feed_forward import mlp
from modelbudget.operations.joining import cat
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part
from modelbudget.operations.views import heads_of


class SharedBlockFields(Architecture):
    d_model: Count
    n_shared_block: Count = 1
    n_head: Parts
    d_head: Count
    position: Literal["none", "rotary"] = "none"
    d_ff: Count
    activation: Literal["gelu", "relu", "relu2", "silu"] = "gelu"
    d_adapter: Size = 0
    attention_adapter: bool = False


ADAPTED = ("query", "key", "value")


def n_block(a: Fields, n_use):
    """Count the blocks that are there: no more than uses."""
    return a.n_shared_block - largest(a.n_shared_block - n_use, 0)


def _attention(a: Fields) -> SimpleNamespace:
    """Return the sizes of attention over the states and the embedding of each token, in a row."""
    return SimpleNamespace(
        d_model=2 * a.d_model,
        n_head=a.n_head,
        d_head=a.d_head,
        d_value=a.d_head,
        attention_bias=0,
        key_bias=0,
    )


def _mlp(a: Fields) -> SimpleNamespace:
    return SimpleNamespace(
        d_model=a.d_model, d_ff=a.d_ff, gated=1, activation=a.activation, up_bias=0, down_bias=0
    )


def parameters(a: Fields) -> Values:
    """Attention of 2 · d_model channels and MLP (Glorioso et al. 2024, arXiv 2405.16712, fig. 2).

    The norm before the attention has as many; nothing is added to the output of attention.
    """
    of_attention = multi_head.parameters(_attention(a))
    return {
        **{f"attention.{name}": value for name, value in of_attention.items()},
        "attention.output": a.n_head * a.d_head * a.d_model,
        **{f"mlp.{name}": value for name, value in mlp.parameters(_mlp(a)).items()},
        "norm.attention": norm.parameters(a, 2 * a.d_model),
        "norm.mlp": norm.parameters(a),
    }


def use_parameters(a: Fields) -> Values:
    """Count the parameters of one use: a square matrix behind the block, and its adapters.

    Each adapter is two matrices (Glorioso et al. 2024, Zamba2, arXiv 2411.15242, fig. 2); gate and
    up projection have one together.
    """
    of_attention = a.attention_adapter * a.d_adapter * (2 * a.d_model + a.n_head * a.d_head)
    return {
        "linear": a.d_model * a.d_model,
        **dict.fromkeys(ADAPTED, of_attention),
        "mlp": a.d_adapter * (a.d_model + 2 * a.d_ff),
    }


def program(a: Fields, r: Run):
    """Declare the parameters of a block; its parts are attributes, which each use runs."""
    joined, heads = 2 * a.d_model, a.n_head * a.d_head
    parts = {f"{name}_of": make_linear(f"attention.{name}", joined, heads) for name in ADAPTED}
    parts["output"] = make_linear("attention.output", heads, a.d_model)
    parts["mlp"] = make_part("mlp", _adapted_mlp, a, r)
    parts["attention_norm"] = norm.make("norm.attention", a, r, (joined,))
    parts["mlp_norm"] = norm.make("norm.mlp", a, r)

    def forward():
        """Compute nothing: uses run the parts."""

    vars(forward).update(parts)
    return forward


def _adapted_mlp(a: Fields, r: Run):
    """States (batch, length, d_model) to the same shape; an adapter adds to gate and up."""
    gate_of, up_of = make_linear("gate", a.d_model, a.d_ff), make_linear("up", a.d_model, a.d_ff)
    down = make_linear("down", a.d_ff, a.d_model)
    activation = mlp.make_activation(a, r)

    def forward(x, adapter=None):
        gate, up = gate_of(x), up_of(x)
        if adapter is not None:
            for_gate, for_up = adapter(x).chunk(2)
            gate, up = gate + for_gate, up + for_up
        return down(activation(gate) * up)

    return forward


def use_program(a: Fields, r: Run):
    """States and token embeddings (batch, length, d_model), and a block, to states."""
    joined, heads = 2 * a.d_model, a.n_head * a.d_head
    has_adapters = a.attention_adapter
    adapters = {
        name: make_part(name, _adapter, joined, a.d_adapter, heads) if has_adapters else None
        for name in ADAPTED
    }
    of_mlp = make_part("mlp", _adapter, a.d_model, a.d_adapter, 2 * a.d_ff) if a.d_adapter else None
    linear = make_linear("linear", a.d_model, a.d_model)
    attend = scaled_dot_product.program(r)
    cache = kv_cache.declare(r, [(a.n_head, a.d_head)] * 2)

    def forward(x, embedded, block):
        x = block.attention_norm(cat((x, embedded)))
        q, k, v = (projected(name, x, block) for name in ADAPTED)
        if a.position == "rotary":
            q, k = rope.rotate(q, a.d_head), rope.rotate(k, a.d_head)
        if cache is not None:
            k, v = cache.append(k, v)
        x = attend(q, k, v)
        x = block.output(x.transpose(1, 2).flatten(2))
        return linear(block.mlp(block.mlp_norm(x), of_mlp))

    def projected(name, x, block):
        """(batch, length, 2 · d_model) to (batch, n_head, length, d_head)."""
        y, adapter = getattr(block, f"{name}_of")(x), adapters[name]
        y = y if adapter is None else y + adapter(x)
        return heads_of(y, a.n_head, a.d_head)

    return forward


def _adapter(d_in, rank, d_out):
    """Two matrices in a row, of a low rank."""
    down, up = make_linear("", d_in, rank), make_linear("", rank, d_out)
    return lambda x: up(down(x))
