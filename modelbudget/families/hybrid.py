"""The recurrent–transformer hybrid: small per-channel RNNs feed attention, then an MLP."""

from collections.abc import Callable
from typing import ClassVar

from pydantic import Field

from modelbudget.architecture.base import Count, Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import tokens
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import contract, embedding, layer, norm
from modelbudget.components.attention.attention_fields import AttentionFields
from modelbudget.components.contract import ALONE, Part, Values
from modelbudget.components.embedding import HeadFields, TokenFields
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.mixers import attention, channel_rnn
from modelbudget.components.mixers.channel_rnn import ChannelRNNFields
from modelbudget.memory.parameter_tensors import counts


class Hybrid(HeadFields, MLPFields, ChannelRNNFields, AttentionFields, TokenFields):
    """A language model without position embedding: the recurrent cells encode the order.

    Attention has two norms, one before the cells and one between the cells and its projections.
    """

    has_cache: ClassVar[bool] = True

    n_layer: Depth = Field(description="layers, each recurrent cells, attention and MLP")
    d_hidden: Count = Field(description="hidden size of each cell")

    @classmethod
    def _holds(cls, quantity: str, a: Fields, r: Run):
        """1 where attention has the formula, else 0."""
        return contract.has_formula(layer.all_parts()["attention"], quantity, a, r)

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """Count the parameters of each component; there is no final norm."""
        ends = {"embedding.token": embedding.token(a), "head": embedding.head(a)}
        return _assembled(a, ends, lambda one: one.parameters(a), norm.parameters(a))

    @staticmethod
    def trained_tensors(a: Fields) -> Terms:
        ends = {"embedding.token": 1, "head": 1 - a.tied + a.head_bias}
        return _assembled(a, ends, lambda one: counts(one.tensors(a)), norm.n_tensors(a))

    @staticmethod
    def activation_bytes(a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass."""
        ends = embedding.saved_by_ends(a, r, a.d_model)
        return _assembled(a, ends, lambda one: one.saved(a, r, ALONE), norm.saved(a, r))

    @staticmethod
    def flops_forward(a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        head = {"head": 2 * tokens(r) * embedding.token(a)}
        return _assembled(a, head, lambda one: one.flops(a, r))

    @staticmethod
    def flops_backward(a: Fields, r: Run) -> Terms:
        """FLOPs of the gradients."""
        head = {"head": 4 * tokens(r) * embedding.token(a)}
        return _assembled(a, head, lambda one: one.flops_backward(a, r))

    @staticmethod
    def cache_bytes(a, r) -> Terms:
        """States of the cells, and keys and values of all tokens."""
        return {
            **part("layer.channel_rnn", channel_rnn.cache(a, r), a.n_layer),
            **part("layer.attention", attention.cache(a, r), a.n_layer),
        }

    def build(self):
        from modelbudget.modules.hybrid import HybridModel

        return HybridModel(self)


def _assembled(a: Fields, ends: Values, of_part: Callable[[Part], Values], one_norm=0) -> Terms:
    """Combine the values of the parts and norms of a layer with those of embedding and head."""
    parts = {name: layer.all_parts()[name] for name in ("channel_rnn", "attention", "mlp")}
    terms = part("", ends)
    for name, one in parts.items():
        terms |= part(f"layer.{name}", of_part(one), a.n_layer)
    return terms | part("layer.norm", dict.fromkeys(parts, one_norm), a.n_layer)
