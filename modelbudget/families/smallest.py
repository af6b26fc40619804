"""The smallest language models: token embedding, an MLP or nothing, and a head."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import tokens
from modelbudget.architecture.terms import Terms, part, scaled
from modelbudget.components import embedding
from modelbudget.components.contract import Values
from modelbudget.components.embedding import HeadFields, TokenFields
from modelbudget.components.feed_forward import mlp
from modelbudget.memory.parameter_tensors import counts, matrix, vector
from modelbudget.operations.part import make_part


class SmallestLM(HeadFields, TokenFields):
    """A model without layers; in training it is what its program says."""

    has_mlp: ClassVar[bool] = False

    @classmethod
    def parameters(cls, a: Fields) -> Terms:
        ends = {"embedding.token": embedding.token(a), "head": embedding.head(a)}
        return cls._parts(ends, lambda: mlp.parameters(a))

    @classmethod
    def trained_tensors(cls, a: Fields) -> Terms:
        table = embedding.rows(a), a.d_model
        head = [matrix("head", *table, 1 - a.tied), vector("head", embedding.rows(a), a.head_bias)]
        ends = counts([matrix("embedding.token", *table), *head])
        return cls._parts(ends, lambda: counts(mlp.tensors(a)))

    @classmethod
    def flops_forward(cls, a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        return cls._parts({"head": 2 * tokens(r) * embedding.token(a)}, lambda: mlp.flops(a, r))

    @classmethod
    def flops_backward(cls, a: Fields, r: Run) -> Terms:
        """Each product twice, for the gradients of both its factors."""
        return scaled(cls.flops_forward(a, r), 2)

    @classmethod
    def program(cls) -> Callable:
        return partial(_program, has_mlp=cls.has_mlp)

    @classmethod
    def _parts(cls, ends: Values, of_mlp: Callable[[], Values]) -> Terms:
        return part("", ends) | (part("mlp", of_mlp()) if cls.has_mlp else {})


def _program(a: Fields, r: Run, has_mlp: bool):
    """Tokens (batch, length) to logits (batch, length, n_vocab)."""
    token = make_part("embedding.token", embedding.table_program, embedding.rows(a), a.d_model)
    between = make_part("mlp", mlp.program, a, r) if has_mlp else None
    head = make_part("head", embedding.head_program, a, r, token.weight)

    def forward(tokens):
        return head(token(tokens) if between is None else between(token(tokens)))

    return forward
