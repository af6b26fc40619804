"""One small RNN for each channel: d_model cells with one input and d_hidden states each."""

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count
from modelbudget.architecture.run_config import bytes_of


class RecurrentFields(Architecture):
    d_model: Count = Field(description="width of the residual stream: the number of cells")
    d_hidden: Count = Field(description="hidden size of each cell")


def parameters(a) -> dict:
    """The Elman cell (Elman 1990) as torch.nn.RNN has it, with input size 1, d_model times.

    cuDNN keeps two biases, one for the input and one for the state; torch counts both.
    """
    return {
        "input": a.d_model * a.d_hidden,
        "hidden": a.d_model * a.d_hidden * a.d_hidden,
        "biases": a.d_model * 2 * a.d_hidden,
    }


def cached(a, r):
    """Bytes of the state of each cell."""
    return bytes_of(r.dtype) * r.batch * a.d_model * a.d_hidden
