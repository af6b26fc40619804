"""Embeddings that each layer reads: a table with a vector of every token for each layer.

Gemma 3n and Gemma 4; transformers, models/gemma3n/modeling_gemma3n.py: `project_per_layer_inputs`
and `Gemma3nTextDecoderLayer`. A projection of the token embedding is normalised and added to them.
A layer multiplies its vector by a gate of its states, and adds a projection of the product.
"""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.base import Architecture, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.components import embedding, norm
from modelbudget.components.feed_forward import mlp
from modelbudget.memory.parameter_tensors import Tensor, matrix
from modelbudget.operations.elementwise import compare
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part
from modelbudget.operations.tape import empty


class PerLayerInputFields(Architecture):
    d_per_layer: Size = 0
    n_vocab_per_layer: Size = 0


def of_model(a: Fields) -> list[Tensor]:
    """Return the table, the projection of the token embedding, and its norm."""
    width, is_there = a.n_layer * a.d_per_layer, positive(a.d_per_layer)
    return [
        matrix("token", a.n_vocab_per_layer, width, is_there),
        matrix("projection", width, a.d_model, is_there),
        *norm.tensors(a, "norm", is_there, a.d_per_layer),
    ]


def of_layer(a: Fields) -> list[Tensor]:
    """Return the gate, the projection of the product, and its norm."""
    is_there = positive(a.d_per_layer)
    return [
        matrix("gate", a.d_per_layer, a.d_model, is_there),
        matrix("up", a.d_model, a.d_per_layer, is_there),
        *norm.tensors(a, "norm", is_there),
    ]


def program_of_model(a: Fields, r: Run):
    """Tokens (batch, length) and states to what each layer reads, (batch, length, d_per_layer)."""
    width = a.n_layer * a.d_per_layer
    token = make_part("token", embedding.table_program, a.n_vocab_per_layer, width)
    projection = make_linear("projection", a.d_model, width)
    norm_ = norm.make("norm", a, r, (a.d_per_layer,))
    sizes = a.n_layer, a.d_per_layer

    def forward(tokens, x):
        projected = projection(x).unflatten(2, sizes)
        known = _known(tokens)
        rows = token(known).unflatten(2, sizes)
        return ((norm_(projected) + rows) * 0.7).unbind(2)

    return forward


def _known(tokens):
    """torch.where(tokens < n, tokens, 0): the number becomes a tensor."""
    is_known, zero = compare(tokens), empty((), "int64")
    return empty(tokens.shape, "int64")


def program_of_layer(a: Fields, r: Run):
    """States (batch, length, d_model) and the layer's embedding to states."""
    gate = make_linear("gate", a.d_model, a.d_per_layer)
    up = make_linear("up", a.d_per_layer, a.d_model)
    norm_ = norm.make("norm", a, r)
    activation = mlp.make_activation(a, r)
    return lambda x, embedded: norm_(up(activation(gate(x)) * embedded))
