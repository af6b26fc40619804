"""The smallest language models: token embedding, an MLP or nothing, and a head."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding
from modelbudget.components.embedding import HeadFields, TokenFields
from modelbudget.components.feed_forward import mlp
from modelbudget.operations.part import make_part


class SmallestLM(HeadFields, TokenFields):
    """A model without layers; in training it is what its program says."""

    has_mlp: ClassVar[bool] = False

    @classmethod
    def parameters(cls, a: Fields) -> Terms:
        ends = {"embedding.token": embedding.token(a), "head": embedding.head(a)}
        return part("", ends) | (part("mlp", mlp.parameters(a)) if cls.has_mlp else {})

    @classmethod
    def program(cls) -> Callable:
        return partial(_program, has_mlp=cls.has_mlp)


def _program(a: Fields, r: Run, has_mlp: bool):
    """Tokens (batch, length) to logits (batch, length, n_vocab)."""
    token = make_part("embedding.token", embedding.table_program, embedding.rows(a), a.d_model)
    between = make_part("mlp", mlp.program, a, r) if has_mlp else None
    head = make_part("head", embedding.head_program, a, r, token.weight)

    def forward(tokens):
        return head(token(tokens) if between is None else between(token(tokens)))

    return forward
