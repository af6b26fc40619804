"""Transformer-XL: relative attention over a memory of earlier segments, adaptive softmax."""

from modelbudget.architecture.base import Depth
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.terms import Terms, part
from modelbudget.components import adaptive_softmax, norm, relative_attention
from modelbudget.components.adaptive_softmax import AdaptiveFields
from modelbudget.components.feed_forward import mlp
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.language_model import in_order, make_layers
from modelbudget.components.norm import NormFields
from modelbudget.components.position import sinusoids
from modelbudget.components.relative_attention import RelativeAttentionFields
from modelbudget.operations.joining import cat
from modelbudget.operations.part import make_part, parameter


class TransformerXL(NormFields, MLPFields, RelativeAttentionFields, AdaptiveFields):
    """Every layer is attention and MLP, each followed by a norm of the sum."""

    n_layer: Depth

    @staticmethod
    def parameters(a: Fields) -> Terms:
        """Dai et al. 2019, §3.3, with the sizes of the authors' code."""
        one_norm = norm.parameters(a)
        return {
            **part("embedding", adaptive_softmax.embedding(a)),
            **part("layer.attention", relative_attention.parameters(a), a.n_layer),
            **part("layer.mlp", mlp.parameters(a), a.n_layer),
            **part("layer.norm", {"attention": one_norm, "mlp": one_norm}, a.n_layer),
            **part("head", adaptive_softmax.head(a)),
            **part("bias", relative_attention.biases(a)),
        }

    @staticmethod
    def model_program(a: Fields, r: Run):
        """Tokens (batch, length), without a segment before, to logarithms of probabilities."""
        embed = make_part("embedding", adaptive_softmax.input_program, a, r)
        names = ("content", "distance")
        bias = [parameter(f"bias.{name}", a.n_head * a.d_head) for name in names]
        layers = make_layers(a.n_layer, lambda _: make_part("layer", _layer, a, r))
        matrices = embed.tables, embed.projections
        head = make_part("head", adaptive_softmax.head_program, a, r, *matrices)

        def forward(tokens):
            x = embed(tokens) * 1.0
            memory = x.narrow(1, 0)
            waves = sinusoids(tokens.shape[1], a.d_model, x.dtype)
            seen = []  # what the next segment would look back on
            for layer in in_order(layers):
                seen.append(cat((memory, x), 1).detach())
                x = layer(x, memory, waves, bias)
            return head(x)

        return forward

    def build(self):
        from modelbudget.modules.transformer_xl import TransformerXLModel

        return TransformerXLModel(self)


def _layer(a: Fields, r: Run):
    attention = make_part("attention", relative_attention.program, a, r)
    of_mlp = make_part("mlp", mlp.program, a, r)
    norms = [norm.make(f"norm.{name}", a, r) for name in ("attention", "mlp")]

    def forward(x, memory, waves, bias):
        after_attention, after_mlp = norms
        x = after_attention(x + attention(x, memory, waves, bias))
        return after_mlp(x + of_mlp(x))

    return forward
