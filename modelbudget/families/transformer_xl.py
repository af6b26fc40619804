"""Transformer-XL: relative attention over a memory of earlier segments, adaptive softmax."""

from pydantic import Field

from modelbudget.architecture.base import Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import adaptive_softmax, loss, norm, relative_attention
from modelbudget.components.adaptive_softmax import AdaptiveFields
from modelbudget.components.contract import Values, doubled
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.norm import NormFields
from modelbudget.components.relative_attention import RelativeAttentionFields
from modelbudget.memory.parameter_tensors import counts


class TransformerXL(NormFields, MLPFields, RelativeAttentionFields, AdaptiveFields):
    """Every layer is attention and MLP, each followed by a norm of the sum."""

    n_layer: Depth = Field(description="layers, each one attention and one MLP")

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """Dai et al. 2019, §3.3, with the sizes of the authors' code."""
        ends = adaptive_softmax.embedding(a), adaptive_softmax.head(a)
        parts = relative_attention.parameters(a), mlp.parameters(a)
        biases = part("bias", relative_attention.biases(a))
        return _assembled(a, *ends, *parts, norm.parameters(a)) | biases

    @staticmethod
    def trained_tensors(a: Fields) -> Terms:
        ends = adaptive_softmax.embedding_tensors(a), adaptive_softmax.head_tensors(a)
        of_attention = dict.fromkeys(relative_attention.parameters(a), 1)
        biases = part("bias", dict.fromkeys(relative_attention.biases(a), 1))
        of_mlp = counts(mlp.tensors(a))
        return _assembled(a, *ends, of_attention, of_mlp, norm.n_tensors(a)) | biases

    @staticmethod
    def activation_bytes(a: Fields, r: Run) -> Terms:
        """Bytes that the forward pass and the loss save for the backward pass.

        The loss takes logarithms of probabilities for scores, and saves them once more.
        """
        ends = adaptive_softmax.embedding_saved(a, r), adaptive_softmax.head_saved(a, r)
        parts = relative_attention.saved(a, r), mlp.saved(a, r)
        once = part("layer.attention", relative_attention.waves(a, r))
        once |= part("", {"loss": loss.saved(r, a.n_vocab)})
        return _assembled(a, *ends, *parts, norm.saved(a, r)) | once

    @staticmethod
    def flops_forward(a: Fields, r: Run) -> Terms:
        """FLOPs of matrix products, two for a multiplication and a sum."""
        ends = adaptive_softmax.embedding_flops(a, r), adaptive_softmax.head_flops(a, r)
        return _assembled(a, *ends, relative_attention.flops(a, r), mlp.flops(a, r))

    @staticmethod
    def flops_backward(a: Fields, r: Run) -> Terms:
        """FLOPs of the gradients."""
        ahead = doubled(adaptive_softmax.embedding_flops(a, r))
        head = doubled(adaptive_softmax.head_flops(a, r))
        parts = relative_attention.flops_backward(a, r), mlp.flops_backward(a, r)
        return _assembled(a, ahead, head, *parts)

    def build(self):
        from modelbudget.modules.transformer_xl import TransformerXLModel

        return TransformerXLModel(self)


def _assembled(
    a: Fields, ahead: Values, head: Values, attention: Values, of_mlp: Values, one_norm=0
) -> Terms:
    """Combine the values of the parts and norms of a layer with those of embedding and head."""
    return {
        **part("embedding", ahead),
        **part("layer.attention", attention, a.n_layer),
        **part("layer.mlp", of_mlp, a.n_layer),
        **part("layer.norm", {"attention": one_norm, "mlp": one_norm}, a.n_layer),
        **part("head", head),
    }
