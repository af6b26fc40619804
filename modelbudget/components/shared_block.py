"""Transformer blocks that several layers share, each use with weights of its own (Zamba)."""

from types import SimpleNamespace
from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Parts, Size
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import largest, positive
from modelbudget.architecture.run_values import bytes_of, one_token, tokens
from modelbudget.components import multi_head, norm
from modelbudget.components.contract import Values
from modelbudget.components.feed_forward import mlp
from modelbudget.memory.parameter_tensors import counts


class SharedBlockFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    n_shared_block: Count = Field(
        1, description="shared blocks with parameters of their own, which layers use in turn"
    )
    n_head: Parts = Field(description="attention heads of a shared block")
    d_head: Count = Field(description="width of one head; the attention reads 2 · d_model channels")
    position: Literal["none", "rotary"] = Field(
        "none", description="position embedding of the shared attention"
    )
    d_ff: Count = Field(description="hidden width of a shared block's gated MLP")
    activation: Literal["gelu", "relu", "relu2", "silu"] = Field(
        "gelu", description="activation function of a shared block's gated MLP"
    )
    d_adapter: Size = Field(
        0, description="rank of what each use adds to gate and up projection; 0: nothing"
    )
    attention_adapter: bool = Field(
        False, description="each use adds as much to query, key and value projection"
    )

    derived: ClassVar[dict[str, str]] = {"d_head": "2 * d_model / n_head", "d_ff": "4 * d_model"}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "d_adapter",
            "attention_adapter = true needs a rank: d_adapter is 0",
            when="attention_adapter",
        ),
        Constraint(
            "d_head % 2 == 0",
            "d_head = {d_head} is odd; position: rotary rotates pairs of channels",
            when="position == 'rotary'",
        ),
    )


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


def _block(attention: Values, output, of_mlp: Values, first_norm, second_norm) -> Values:
    """Values of a block by component; the output of its attention is d_model wide."""
    return {
        **{f"attention.{name}": value for name, value in attention.items() if name},
        "attention.output": output,
        **{f"mlp.{name}" if name else "mlp": value for name, value in of_mlp.items()},
        "norm.attention": first_norm,
        "norm.mlp": second_norm,
    }


def parameters(a: Fields) -> Values:
    """Attention of 2 · d_model channels and MLP (Glorioso et al. 2024, arXiv 2405.16712, fig. 2).

    The norm before the attention has as many; nothing is added to the output of attention.
    """
    output = a.n_head * a.d_head * a.d_model
    of_attention, of_mlp = multi_head.parameters(_attention(a)), mlp.parameters(_mlp(a))
    return _block(
        of_attention, output, of_mlp, norm.parameters(a, 2 * a.d_model), norm.parameters(a)
    )


def n_tensors(a: Fields) -> Values:
    """Count the parameter tensors of a block."""
    of_attention, of_mlp = (
        counts(part.tensors(view(a))) for part, view in ((multi_head, _attention), (mlp, _mlp))
    )
    return _block(of_attention, 1, of_mlp, norm.n_tensors(a), norm.n_tensors(a))


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


def use_n_tensors(a: Fields) -> Values:
    """Count the parameter tensors of one use."""
    of_attention = 2 * a.attention_adapter
    return {
        "linear": 1,
        **dict.fromkeys(ADAPTED, of_attention),
        "mlp": 2 * positive(a.d_adapter),
    }


def saved(a: Fields, r: Run) -> Values:
    """Return the bytes that a block saves in one use: inputs of norms and projections, and the MLP.

    What the norm of the attention reads is a tensor of its own.
    """
    found = multi_head.saved(_attention(a), r)
    return _block(
        {"query": found["query"]},
        found["output"],
        mlp.saved(_mlp(a), r),
        norm.saved(a, r, 2 * a.d_model),
        norm.saved(a, r),
    )


def use_saved(a: Fields, r: Run) -> Values:
    """Return the bytes saved by what each use has: attention itself, adapters, the square matrix.

    Adapters read the inputs of the projections and save what is between their matrices.
    """
    rotary = int(a.position == "rotary")
    low = bytes_of(r.dtype) * tokens(r) * a.d_adapter
    return {
        "": multi_head.saved(_attention(a), r, rotary)[""],
        "linear": bytes_of(r.dtype) * tokens(r) * a.d_model,
        **dict.fromkeys(ADAPTED, a.attention_adapter * low),
        "mlp": low,
    }


def flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token."""
    output = 2 * tokens(r) * a.n_head * a.d_head * a.d_model
    return _block(multi_head.flops(_attention(a), r), output, mlp.flops(_mlp(a), r), 0, 0)


def use_flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token of a use, and the products of attention."""
    return _of_weights(a, r) | {"": multi_head.flops(_attention(a), r)[""]}


def use_flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice; fused kernels compute the scores again."""
    twice = {name: 2 * value for name, value in _of_weights(a, r).items()}
    return twice | {"": multi_head.flops_backward(_attention(a), r)[""]}


def use_flops_decode(a: Fields, r: Run) -> Values:
    """Of one token, whose queries meet the keys of all tokens."""
    of_one = use_flops(a, one_token(r))
    return of_one | {"": r.length * of_one[""]}


def _of_weights(a: Fields, r: Run) -> Values:
    return {name: 2 * tokens(r) * numbers for name, numbers in use_parameters(a).items()}


def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of keys and values: each use has its own."""
    return {"": bytes_of(r.dtype) * 2 * tokens(r) * a.n_head * a.d_head}
