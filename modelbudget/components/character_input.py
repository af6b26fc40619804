"""Character-level input: convolutions over characters in place of a token embedding."""

from typing import Annotated

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Depth
from modelbudget.architecture.formula_arguments import Fields
from modelbudget.components.embedding import table_program
from modelbudget.operations.convolution import conv1d
from modelbudget.operations.joining import cat
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part, parameter


class CharacterInputFields(Architecture):
    d_model: Count
    n_character: Count = 256
    d_character: Count = 16
    n_letter: Count = 50
    n_filter: Count
    n_span: Annotated[int, Field(ge=1, le=64)]
    n_narrow: Count
    n_highway: Depth = 2


def parameters(a) -> dict:
    """Kim et al. 2016, §2.2 and §2.3, as in Jozefowicz et al. 2016, Figure 1 (b).

    With f filters of span 1, f of span 2, 2f of span 3 and so on, the spans of all filters sum to
    (n_span − 1) · n_filter + f.
    """
    spans = (a.n_span - 1) * a.n_filter + a.n_narrow
    square = a.n_filter * a.n_filter + a.n_filter
    return {
        "character": a.n_character * a.d_character,
        "filter": spans * a.d_character + a.n_filter,
        "highway.gate": a.n_highway * square,
        "highway.transform": a.n_highway * square,
        "projection": a.n_filter * a.d_model + a.d_model,
    }


def program(a: Fields):
    """Characters (batch, length, n_letter) to word vectors (batch, length, d_model)."""
    character = make_part("character", table_program, a.n_character, a.d_character)
    filters = [
        make_part("filter", span_filter, a.d_character, span, a.n_narrow * 2 ** max(0, span - 2))
        for span in range(1, a.n_span + 1)
    ]
    highways = [make_part("highway", highway, a.n_filter) for _ in range(a.n_highway)]
    projection = make_linear("projection", a.n_filter, a.d_model, bias=True)

    def forward(characters):
        batch, length, _ = characters.shape
        letters = character(characters.flatten(0, 1)).transpose(1, 2)
        x = cat([each(letters).relu().amax() for each in filters])
        for layer in highways:
            x = layer(x)
        return projection(x).unflatten(0, (batch, length))

    return forward


def span_filter(n_in, span, n_out):
    """(words, n_in, letters) to (words, n_out, letters - span + 1)."""
    weight, bias = parameter("weight", n_out, n_in, span), parameter("bias", n_out)
    return lambda x: conv1d(x, weight, bias)


def highway(width):
    """(…, width) to (…, width): a gate mixes the input and its transformation."""
    gate_of = make_linear("gate", width, width, bias=True)
    transform = make_linear("transform", width, width, bias=True)

    def forward(x):
        gate = gate_of(x).sigmoid()
        return gate * transform(x).relu() + (1 - gate) * x

    return forward
