"""Character-level input: convolutions over characters in place of a token embedding."""

from typing import Annotated, ClassVar

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Depth
from modelbudget.architecture.constraint import Constraint


class CharacterInputFields(Architecture):
    d_model: Count = Field(description="width of a word's vector: the first layer's input")
    n_character: Count = Field(256, description="characters, word boundaries included")
    d_character: Count = Field(16, description="width of a character's embedding")
    n_filter: Count = Field(description="convolution filters of all spans together")
    n_span: Annotated[int, Field(ge=1, le=64)] = Field(
        description="spans of 1 to n_span characters; each has twice the filters of the one "
        "before, only spans 1 and 2 have equally many",
    )
    n_narrow: Count = Field(description="filters that span one character")
    n_highway: Depth = Field(2, description="highway layers between filters and projection")

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "n_filter == n_narrow * exp2(n_span - 1)",
            "n_filter = {n_filter} is not n_narrow · 2^(n_span − 1) = "
            "{n_narrow * exp2(n_span - 1)}, the sum over all spans",
        ),
    )


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
