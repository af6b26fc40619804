"""What programs of language models share: layers in a row, and a head behind them."""

from collections.abc import Callable, Iterator, Sequence

from modelbudget.common.attributes import with_attributes
from modelbudget.operations.part import Part
from modelbudget.operations.tape import Active


def make_layers(n_layer, make: Callable[[int], Part], n_before: int = 0) -> list[Part]:
    """Make layers, each by its number; `n_before`: layers of another stack, for the tape."""
    layers = []
    for place, number in enumerate(range(n_layer), n_before):
        Active.tape.layer = place
        layers.append(make(number))
    Active.tape.layer = None
    return layers


def in_order(layers: Sequence[Part], n_before: int = 0) -> Iterator[Part]:
    """Yield layers; the tape knows which one runs."""
    for number, layer in enumerate(layers, n_before):
        Active.tape.layer = number
        yield layer
    Active.tape.layer = None


def with_head(stream: Callable, final_norm: Callable, head: Callable) -> Callable:
    """Return a function from tokens (batch, length) to logits (batch, length, n_vocab).

    `stream` returns the states after the last layer, and others that the model holds to its end.
    """

    def forward(tokens):
        x, *_live = stream(tokens)  # live until the logits are there
        return head(final_norm(x))

    def next_token(tokens, last):
        """Return the logits of the last token, whose states `last` takes of all."""
        x, *_live = stream(tokens)
        states = final_norm(x)  # both are live with the copy
        return head(last(states))

    return with_attributes(forward, next_token=next_token)


def in_a_row(token: Part, layers: Sequence[Part], head: Callable,
             final_norm: Callable = lambda x: x) -> Callable:  # fmt: skip
    """Return the same of layers that read one after the other, without anything else."""

    def stream(tokens):
        x = token(tokens)
        for layer in in_order(layers):
            x = layer(x)
        return (x,)

    return with_head(stream, final_norm, head)
