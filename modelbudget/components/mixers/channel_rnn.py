"""One small RNN for each channel: d_model cells with one input and d_hidden states each."""

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.run_config import bytes_of
from modelbudget.components.contract import Values

GROUP = "recurrence"
SIZES = ("d_hidden",)


class ChannelRNNFields(Architecture):
    d_model: Count = Field(description="width of the residual stream: the number of cells")
    d_hidden: Size = Field(0, description="mixers: channel_rnn: hidden size of each channel's cell")


FIELDS = ChannelRNNFields


def parameters(a: Fields) -> Values:
    """Count the parameters of d_model Elman cells with input size 1 (Elman 1990; torch.nn.RNN).

    cuDNN keeps two biases, one for the input and one for the state; torch counts both.
    """
    return {
        "input": a.d_model * a.d_hidden,
        "hidden": a.d_model * a.d_hidden * a.d_hidden,
        "biases": a.d_model * 2 * a.d_hidden,
    }


def cache(a: Fields, r: Run) -> Values:
    """Bytes of the state of each cell."""
    return {"": bytes_of(r.dtype) * r.batch * a.d_model * a.d_hidden}
