"""A convolution for each channel that sees only what came before, as a program."""

from modelbudget.components import recurrent_state
from modelbudget.operations.convolution import conv1d
from modelbudget.operations.joining import cat, pad
from modelbudget.operations.part import parameter


def program(n_channel, span, has_bias: bool = True):
    """(batch, length, n_channel) to the same shape, over a token and the span − 1 before it."""
    weight = parameter("weight", n_channel, 1, span)
    bias = parameter("bias", n_channel) if has_bias else None
    cache = recurrent_state.declare((n_channel, span))

    def forward(x):
        x = x.transpose(1, 2)
        batch, _, length = x.shape
        if cache is None:
            padded = (batch, n_channel, length + span - 1)
            return conv1d(pad(x, padded), weight, bias).transpose(1, 2)
        seen = cat((cache.tensors[0], x))
        seen_by_new = seen.narrow(-1, length + span - 1, is_first=False)
        return conv1d(seen_by_new, weight, bias).transpose(1, 2)

    return forward
