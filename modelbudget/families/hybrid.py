"""The recurrent–transformer hybrid: small per-channel RNNs feed attention, then an MLP."""

from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Count, Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_adapter import OF_FROZEN
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, layer, norm
from modelbudget.components.attention.attention_fields import AttentionFields
from modelbudget.components.embedding import HeadFields, TokenFields
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.language_model import in_a_row, make_layers
from modelbudget.operations.part import make_part

PARTS = ("channel_rnn", "attention", "mlp")


class Hybrid(HeadFields, MLPFields, AttentionFields, TokenFields):
    """A language model without position embedding: the recurrent cells encode the order.

    Attention has two norms, one before the cells and one between the cells and its projections.
    """

    switches_of_run: ClassVar[tuple[str, ...]] = OF_FROZEN
    has_cache: ClassVar[bool] = True
    LOOPS_OVER_TOKENS: ClassVar[bool] = True

    n_layer: Depth
    d_hidden: Count = Field()

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """Count the parameters of each component; there is no final norm."""
        terms = part("", {"embedding.token": embedding.token(a), "head": embedding.head(a)})
        for name in PARTS:
            terms |= part(f"layer.{name}", layer.all_parts()[name].parameters(a), a.n_layer)
        return terms | part("layer.norm", dict.fromkeys(PARTS, norm.parameters(a)), a.n_layer)

    @staticmethod
    def model_program(a: Fields, r: Run):
        """Tokens (batch, length) to logits (batch, length, n_vocab)."""
        token = make_part("embedding.token", embedding.token_program, a, r)
        layers = make_layers(a.n_layer, lambda _: make_part("layer", _layer, a, r))
        head = make_part("head", embedding.head_program, a, r, token.weight)
        return in_a_row(token, layers, head)

    def build(self):
        from modelbudget.modules.hybrid import hybrid_model

        return hybrid_model(self)


def _layer(a: Fields, r: Run):
    """States (batch, length, d_model) to states of the same shape."""
    recur, attend, feed = (make_part(name, layer.all_parts()[name].program, a, r) for name in PARTS)
    norms = {name: norm.make(f"norm.{name}", a, r) for name in PARTS}

    def forward(x):
        y = recur(norms["channel_rnn"](x))  # live to the end
        x = x + attend(norms["attention"](y))
        return x + feed(norms["mlp"](x))

    return forward
