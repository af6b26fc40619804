"""Encoders: BERT, RoBERTa, ALBERT and ModernBERT are switches of one record.

So are decoders with the same layers.
"""

from typing import ClassVar, Literal

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.base import Count, Depth, Size
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_adapter import OF_FROZEN
from modelbudget.architecture.terms import Terms, part
from modelbudget.common.attributes import with_attributes
from modelbudget.components import embedding, multi_head, norm
from modelbudget.components.embedding import FactorisedFields, HeadFields, LearnedPositionFields
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.language_model import in_order, make_layers, with_head
from modelbudget.components.multi_head import MultiHeadFields
from modelbudget.components.norm import NormFields
from modelbudget.components.position import causal_bias
from modelbudget.operations.activation_checkpoint import checkpoint
from modelbudget.operations.elementwise import compare, without_gradient
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part
from modelbudget.operations.tape import Tensor, empty


class Encoder(
    NormFields, MLPFields, MultiHeadFields, LearnedPositionFields, HeadFields, FactorisedFields
):
    """A masked language model, or its states alone: every token attends all others.

    With `causal` it attends those before it, and layers keep a cache: ModernBERT's decoder. The
    `transform` is between the last layer and the head: a square matrix, the activation and a norm.
    `pooler` and `next_sentence` read the first token's state alone.
    """

    has_cache: ClassVar[bool] = True
    caches_only_if: ClassVar[str] = "causal"
    switches_of_run: ClassVar[tuple[str, ...]] = ("recompute", *OF_FROZEN)
    constraints_of_run: ClassVar[tuple[Constraint, ...]] = (multi_head.WHOLE_LAYERS,)

    n_layer: Depth
    n_distinct: Depth
    causal: bool = False
    position: Literal["learned", "rotary"] = "learned"
    n_segment: Size = 0
    embedding_norm: bool = True
    norm_placement: Literal["pre", "post"] = "post"
    first_norm: bool = True
    final_norm: bool = False
    window: Size = 0
    global_every: Count = 1
    pooler: bool = False
    next_sentence: bool = False
    lm_head: bool = True
    transform: bool = True
    transform_bias: bool = True

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """Count the parameters of each component.

        BERT: Devlin et al. 2019, §3; shared layers and factorised embedding: Lan et al. 2020, §3.1;
        ModernBERT: Warner et al. 2024, §2.1.
        """
        width = embedding.width(a)
        narrow = norm.parameters(a, width)
        ends = {
            "embedding.token": embedding.token(a, width),
            "embedding.position": embedding.learned(a, width),
            "embedding.segment": a.n_segment * width,
            "embedding.norm": a.embedding_norm * narrow,
            "embedding.projection": positive(a.d_emb) * (a.d_emb + 1) * a.d_model,
            "transform.dense": a.transform * (a.d_model + a.transform_bias) * width,
            "transform.norm": a.transform * narrow,
            "head": a.lm_head * embedding.head(a, width),
            "pooler": a.pooler * (a.d_model + 1) * a.d_model,
            "next_sentence": a.next_sentence * 2 * (a.d_model + 1),
        }
        one_norm = norm.parameters(a)
        return {
            **part("", ends),
            **part("layer.attention", multi_head.parameters(a), a.n_distinct),
            **part("layer.mlp", mlp.parameters(a), a.n_distinct),
            **part("layer.norm", {"attention": one_norm}, a.n_distinct - 1 + a.first_norm),
            **part("layer.norm", {"mlp": one_norm}, a.n_distinct),
            **part("norm", {"final": a.final_norm * one_norm}),
        }

    @staticmethod
    def model_program(a: Fields, r: Run):
        """Tokens (batch, length) to logits (batch, length, n_vocab), or without a head to states.

        Logits and states are of all tokens in inference too.
        """
        width = embedding.width(a)
        embed = make_part("embedding", _embedding, a, r)
        layers = make_layers(a.n_distinct, lambda i: make_part("layer", _layer, a, r, i))
        final_norm = norm.make("norm.final", a, r) if a.final_norm else lambda x: x
        if a.pooler:  # masked tokens are read without it
            make_linear("pooler", a.d_model, a.d_model, bias=True)
        if a.next_sentence:
            make_linear("next_sentence", a.d_model, 2, bias=True)
        transform = make_part("transform", _transform, a, r) if a.transform else lambda x: x
        of_head = (embedding.head_program, a, r, embed.token, width)
        head = make_part("head", *of_head) if a.lm_head else lambda x: x

        def stream(tokens):
            x = embed(tokens)
            local = _local_mask(a, x) if a.window else None
            passes = [layer for layer in layers for _ in range(a.n_layer // a.n_distinct)]
            for i, layer in enumerate(in_order(passes)):
                x = layer(x, None if i % a.global_every == 0 else local)
            return (final_norm(x),)

        return with_head(stream, transform, head)

    def build(self):
        from modelbudget.modules.encoder import EncoderModel

        return EncoderModel(self)


def _embedding(a: Fields, r: Run):
    """Tokens (batch, length) to states (batch, length, d_model)."""
    width = embedding.width(a)
    token = make_part("token", embedding.token_program, a, r, width)
    if a.position == "learned":
        n_place = a.n_ctx + a.position_offset
        position = make_part("position", embedding.table_program, n_place, width)
    if a.n_segment:
        segment = make_part("segment", embedding.table_program, a.n_segment, width)
    norm_ = norm.make("norm", a, r, (width,)) if a.embedding_norm else lambda x: x
    projection = make_linear("projection", width, a.d_model, bias=True) if a.d_emb else lambda x: x

    def forward(tokens):
        x = token(tokens)
        if a.position == "learned":
            places = empty((tokens.shape[1],), "int64")  # live to the end
            x = x + position(without_gradient(places))
        if a.n_segment:
            x = x + segment(without_gradient(tokens))
        x = norm_(x)
        return projection(x)

    return with_attributes(forward, token=token.weight)


def _layer(a: Fields, r: Run, number):
    """States (batch, length, d_model) to states of the same shape."""
    keeps = r.length if a.causal else 0
    window = a.window if number % a.global_every else 0
    is_rotary = a.position == "rotary"
    attention = make_part("attention", multi_head.program, a, r, is_rotary, keeps, window)
    of_mlp = make_part("mlp", mlp.program, a, r)
    has_norm = a.first_norm or number > 0
    attention_norm = norm.make("norm.attention", a, r) if has_norm else lambda x: x
    mlp_norm = norm.make("norm.mlp", a, r)

    def forward(x, mask):
        return checkpoint(compute, x, mask) if r.recompute == "full" else compute(x, mask)

    def compute(x, mask):
        if a.norm_placement == "post":
            x = attention_norm(x + attention(x, None, a.causal, mask))
            return mlp_norm(x + of_mlp(x))
        y = attention_norm(x)  # live to the end
        x = x + attention(y, None, a.causal, mask)
        return x + of_mlp(mlp_norm(x))

    return forward


def _transform(a: Fields, r: Run):
    """States (batch, length, d_model) to what the head reads."""
    width = embedding.width(a)
    dense = make_linear("dense", a.d_model, width, a.transform_bias)
    norm_ = norm.make("norm", a, r, (width,))
    activation = mlp.make_activation(a, r)
    return lambda x: norm_(activation(dense(x)))


def _local_mask(a: Fields, x: Tensor) -> Tensor | None:
    """Return where two tokens are at most half a window apart: (length, length).

    Of causal layers what is added to scores, if a token is not in the window of another.
    """
    length = x.shape[1]
    if a.causal:
        return causal_bias(length, x.dtype, a.window) if a.window < length else None
    places = empty((length,), "int64")  # live to the end
    return compare(without_gradient(empty((length, length), "int64")))
