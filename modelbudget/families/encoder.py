"""Encoders: BERT, RoBERTa, ALBERT and ModernBERT are switches of one record."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Count, Depth, Size
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import INDEX, accumulates, bytes_of, tokens
from modelbudget.architecture.terms import Terms, part, scaled
from modelbudget.components import embedding, multi_head, norm
from modelbudget.components.contract import Values, doubled
from modelbudget.components.embedding import FactorisedFields, HeadFields, LearnedPositionFields
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.multi_head import MultiHeadFields
from modelbudget.components.norm import NormFields
from modelbudget.memory import optimizer_states
from modelbudget.memory.optimizer_states import SINGLE
from modelbudget.memory.parameter_tensors import counts


class Encoder(
    NormFields, MLPFields, MultiHeadFields, LearnedPositionFields, HeadFields, FactorisedFields
):
    """A masked language model, or its states alone: every token attends all others.

    The `transform` is between the last layer and the head: a square matrix, the activation
    and a norm. `pooler` and `next_sentence` read the first token's state alone.
    """

    n_layer: Depth = Field(description="layers that a token passes through")
    n_distinct: Depth = Field(
        description="layers with parameters of their own; each is passed n_layer / n_distinct times"
    )
    position: Literal["learned", "rotary"] = "learned"
    n_segment: Size = Field(0, description="kinds of segment, each with an embedding")
    embedding_norm: bool = Field(True, description="a norm of the summed embeddings")
    norm_placement: Literal["pre", "post"] = Field(
        "post", description="norms before attention and MLP, or after the residual sum"
    )
    first_norm: bool = Field(True, description="the first layer's attention has its norm")
    final_norm: bool = Field(False, description="a norm after the last layer")
    window: Size = Field(
        0, description="tokens that a local layer sees, half on each side; 0: all layers see all"
    )
    global_every: Count = Field(1, description="period of the layers that see all tokens")
    pooler: bool = Field(False, description="a dense layer on the first token's state")
    next_sentence: bool = Field(False, description="two classes read from the pooler")
    lm_head: bool = Field(
        True, description="false: the states of the last layer are the result, as for embeddings"
    )
    transform: bool = Field(True, description="dense layer and norm before the head")
    transform_bias: bool = Field(True, description="the transform's dense layer adds a bias")

    derived: ClassVar[dict[str, str]] = {"n_distinct": "n_layer"}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "n_layer % n_distinct == 0",
            "n_distinct = {n_distinct} does not divide n_layer = {n_layer}; "
            "each distinct layer is passed equally often",
        ),
        Constraint(
            "transform or not lm_head",
            "transform = false with d_emb = {d_emb}; "
            "the head is d_emb wide, which needs the transform",
            when="d_emb",
        ),
        Constraint(
            "not transform",
            "lm_head = false needs transform: false, which is between the layers and the head",
            when="not lm_head",
        ),
        Constraint(
            "first_norm or norm_placement == 'pre' and n_distinct == n_layer",
            "first_norm = false needs norm_placement: pre and n_distinct = n_layer; "
            "the first layer then differs from the others",
        ),
        Constraint(
            "not transform",
            "activation = xielu: a transform has none with parameters",
            when="activation == 'xielu'",
        ),
        Constraint(
            "pooler",
            "next_sentence = true needs pooler: true, which it reads",
            when="next_sentence",
        ),
        Constraint(
            "d_head % 2 == 0",
            "d_head = {d_head} is odd; position: rotary rotates pairs of channels",
            when="position == 'rotary'",
        ),
    )

    @classmethod
    def _holds(cls, quantity: str, a: Fields, r: Run):
        """1 where the attention kernel takes the mask of local layers, and the values.

        Without a head there is no loss.
        """
        local = positive(a.window) * positive(a.global_every - 1) * positive(a.n_layer - 1)
        known = a.lm_head * multi_head.same_widths(a, r)
        return known * (1 - int(r.attention_kernel != "math") * local)

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """Count the parameters of each component.

        BERT: Devlin et al. 2019, §3; shared layers and factorised embedding: Lan et al. 2020, §3.1;
        ModernBERT: Warner et al. 2024, §2.1.
        """
        return Encoder.trained_parameters(a) | _unread(a)

    @staticmethod
    def trained_parameters(a: Fields) -> Terms:
        """Count the parameters that get a gradient: masked tokens are read without the pooler."""
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
        }
        parts = multi_head.parameters(a), mlp.parameters(a)
        return _assembled(a, ends, *parts, norm.parameters(a), a.n_distinct)

    @staticmethod
    def trained_tensors(a: Fields) -> Terms:
        one_norm = norm.n_tensors(a)
        ends = {
            "embedding.token": 1,
            "embedding.position": int(a.position == "learned"),
            "embedding.segment": positive(a.n_segment),
            "embedding.norm": a.embedding_norm * one_norm,
            "embedding.projection": 2 * positive(a.d_emb),
            "transform.dense": a.transform * (1 + a.transform_bias),
            "transform.norm": a.transform * one_norm,
            "head": a.lm_head * (1 - a.tied + a.head_bias),
        }
        parts = counts(multi_head.tensors(a)), counts(mlp.tensors(a))
        return _assembled(a, ends, *parts, one_norm, a.n_distinct)

    @classmethod
    def gradient_bytes(cls, a: Fields, r: Run) -> Terms:
        """Count the bytes of gradients; a buffer of them is of all parameters."""
        return super().gradient_bytes(a, r) | scaled(_unread(a), accumulates(r) * SINGLE)

    @classmethod
    def optimizer_bytes(cls, a: Fields, r: Run) -> Terms:
        """Count the bytes of the optimizer states; master weights are of all parameters.

        So are all states where gradients are in a buffer: those of what is not read are zeros.
        """
        unread = scaled(_unread(a), r.master_weights * SINGLE)
        if accumulates(r):
            tensors = {"pooler": 2 * a.pooler, "next_sentence": 2 * a.next_sentence}
            unread = optimizer_states.states(r, _unread(a), part("", tensors))
        return super().optimizer_bytes(a, r) | unread

    @staticmethod
    def activation_bytes(a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass.

        Indices of embeddings and inputs of norms and projections. The transform's activation saves
        its argument; ReLU its value instead, which the norm reads too.
        """
        width = embedding.width(a)
        narrow, states = norm.saved(a, r, width), bytes_of(r.dtype) * tokens(r)
        shared = int(a.activation == "relu") * states * width
        ends = embedding.saved_by_ends(a, r, width) | {
            "embedding.position": int(a.position == "learned") * INDEX * r.length,
            "embedding.segment": positive(a.n_segment) * INDEX * tokens(r),
            "embedding.norm": a.embedding_norm * narrow,
            "embedding.projection": states * a.d_emb,
            "transform.dense": a.transform * states * a.d_model,
            "transform": a.transform * states * width,
            "transform.norm": a.transform * (narrow - shared),
        }
        parts = multi_head.saved(a, r, int(a.position == "rotary")), mlp.saved(a, r)
        return _assembled(a, ends, *parts, norm.saved(a, r), a.n_layer)

    @staticmethod
    def flops_forward(a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        return _assembled(a, _products(a, r), multi_head.flops(a, r), mlp.flops(a, r))

    @staticmethod
    def flops_backward(a: Fields, r: Run) -> Terms:
        """FLOPs of the gradients."""
        ends = doubled(_products(a, r))
        return _assembled(a, ends, multi_head.flops_backward(a, r), mlp.flops_backward(a, r))

    def build(self):
        from modelbudget.modules.encoder import EncoderModel

        return EncoderModel(self)


def _unread(a: Fields) -> Terms:
    """Parameters that masked tokens are predicted without."""
    unread = {
        "pooler": a.pooler * (a.d_model + 1) * a.d_model,
        "next_sentence": a.next_sentence * 2 * (a.d_model + 1),
    }
    return part("", unread)


def _products(a: Fields, r: Run) -> Values:
    """FLOPs of the forward products before and after the layers."""
    of_token = 2 * tokens(r) * embedding.width(a)
    return {
        "embedding.projection": positive(a.d_emb) * of_token * a.d_model,
        "transform.dense": a.transform * of_token * a.d_model,
        "head": of_token * embedding.rows(a),
    }


def _assembled(
    a: Fields, ends: Values, attention: Values, of_mlp: Values, one_norm=0, n_layer=None
) -> Terms:
    """Combine the values of `n_layer` layers (a.n_layer) with those of both ends of the model."""
    n_layer = a.n_layer if n_layer is None else n_layer
    return {
        **part("", ends),
        **part("layer.attention", attention, n_layer),
        **part("layer.mlp", of_mlp, n_layer),
        **part("layer.norm", {"attention": one_norm}, n_layer - 1 + a.first_norm),
        **part("layer.norm", {"mlp": one_norm}, n_layer),
        **part("norm", {"final": a.final_norm * one_norm}),
    }
