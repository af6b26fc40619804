"""Transformer-XL: relative attention over a memory of earlier segments, adaptive words."""

from pydantic import Field

from modelbudget.architecture.base import Depth
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import adaptive_softmax, norm, relative_attention
from modelbudget.components.adaptive_softmax import AdaptiveFields
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.norm import NormFields
from modelbudget.components.relative_attention import RelativeAttentionFields


class TransformerXL(NormFields, MLPFields, RelativeAttentionFields, AdaptiveFields):
    """Every layer is attention and MLP, each followed by a norm of the sum."""

    n_layer: Depth = Field(description="layers, each one attention and one MLP")

    @staticmethod
    def parameters(a) -> Terms:
        """Dai et al. 2019, §3.3, with the sizes of the authors' code."""
        one_norm = norm.parameters(a)
        return {
            **part("embedding", adaptive_softmax.embedding(a)),
            **part("bias", relative_attention.biases(a)),
            **part("layer.attention", relative_attention.parameters(a), a.n_layer),
            **part("layer.mlp", mlp.parameters(a), a.n_layer),
            **part("layer.norm", {"attention": one_norm, "mlp": one_norm}, a.n_layer),
            **part("head", adaptive_softmax.head(a)),
        }

    def build(self):
        from modelbudget.modules.transformer_xl import TransformerXLModel

        return TransformerXLModel(self)
