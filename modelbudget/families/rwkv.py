"""RWKV-4: a recurrent network that trains like a transformer."""

from collections.abc import Callable
from typing import ClassVar

from modelbudget.architecture.base import Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_adapter import OF_FROZEN
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import embedding, norm, rwkv_mixers
from modelbudget.components.contract import Values
from modelbudget.components.embedding import HeadFields, VocabularyFields
from modelbudget.components.language_model import in_order, make_layers, with_head
from modelbudget.components.norm import NormFields
from modelbudget.components.rwkv_mixers import RWKVFields
from modelbudget.operations.elementwise import add
from modelbudget.operations.part import make_part


class RWKV(NormFields, RWKVFields, HeadFields, VocabularyFields):
    """Every layer is a time mixer and a channel mixer, each behind a norm."""

    switches_of_run: ClassVar[tuple[str, ...]] = OF_FROZEN
    has_cache: ClassVar[bool] = True
    LOOPS_OVER_TOKENS: ClassVar[bool] = True

    n_layer: Depth

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """Peng et al. 2023, §3; with d_ff = 4D and untied, their 2VD + 13D²L + D(11L + 4)."""
        return assembled(a, rwkv_mixers.time(a), rwkv_mixers.channel(a))

    @staticmethod
    def model_program(a: Fields, r: Run):
        return program_of(a, r, _layer)

    def build(self):
        from modelbudget.modules.rwkv import rwkv_model

        return rwkv_model(self)


def assembled(a: Fields, time: Values, channel: Values) -> Terms:
    """Combine the parameters of both mixers of a layer with those of embedding, norms and head."""
    one_norm = norm.parameters(a)
    return {
        **part("", {"embedding.token": embedding.token(a), "head": embedding.head(a)}),
        **part("embedding", {"norm": one_norm}),
        **part("layer.time", time, a.n_layer),
        **part("layer.channel", channel, a.n_layer),
        **part("layer.norm", {"time": one_norm, "channel": one_norm}, a.n_layer),
        **part("norm", {"final": one_norm}),
    }


def program_of(a: Fields, r: Run, make_layer: Callable):
    """Tokens (batch, length) to logits (batch, length, n_vocab).

    `make_layer`, by fields, run and number: a layer returns states and the values that later ones
    read.
    """
    token = make_part("embedding.token", embedding.token_program, a, r)
    embedding_norm = norm.make("embedding.norm", a, r)
    layers = make_layers(a.n_layer, lambda number: make_part("layer", make_layer, a, r, number))
    final_norm = norm.make("norm.final", a, r)
    head = make_part("head", embedding.head_program, a, r, token.weight)

    def stream(tokens):
        x, values = embedding_norm(token(tokens)), None
        for layer in in_order(layers):
            x, values = layer(x, values)
        return x, values

    return with_head(stream, final_norm, head)


def _layer(a: Fields, r: Run, number: int):
    time = make_part("time", rwkv_mixers.time_program, a, r)
    channel = make_part("channel", rwkv_mixers.channel_program, a, r)
    time_norm, channel_norm = norm.make("norm.time", a, r), norm.make("norm.channel", a, r)

    def forward(x, values):
        x = add(x, time(time_norm(x)))
        return add(x, channel(channel_norm(x))), values

    return forward
