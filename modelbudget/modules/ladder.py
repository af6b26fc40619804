"""The rungs of the counting ladder, each a named sequence of parts."""

from collections import OrderedDict

from torch import nn

from modelbudget.modules.embedding import TokenEmbedding
from modelbudget.modules.feed_forward.mlp import MLP
from modelbudget.modules.lm_head import make_head
from modelbudget.modules.mixers.attention import Attention
from modelbudget.modules.norm import make_norm


def embedding(a) -> nn.Module:
    return named(embedding=TokenEmbedding(a))


def embedding_lm(a) -> nn.Module:
    table = TokenEmbedding(a)
    return named(embedding=table, head=make_head(a, table.token, a.d_model))


def mlp(a) -> nn.Module:
    return named(mlp=MLP(a))


def feed_forward_lm(a) -> nn.Module:
    table = TokenEmbedding(a)
    return named(embedding=table, mlp=MLP(a), head=make_head(a, table.token, a.d_model))


def attention(a) -> nn.Module:
    return named(attention=Attention(a))


def norm(a) -> nn.Module:
    return named(norm=make_norm(a))


def named(**parts: nn.Module) -> nn.Sequential:
    """One part after another; each part's name is its component's."""
    return nn.Sequential(OrderedDict(parts))
