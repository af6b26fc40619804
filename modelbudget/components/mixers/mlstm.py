"""mLSTM: an LSTM whose memory is a matrix for each head (Beck et al. 2024, arXiv 2405.04517)."""

from pydantic import Field

from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.operations import positive
from modelbudget.architecture.run_values import state_bytes, tokens
from modelbudget.components.contract import Values
from modelbudget.components.passes import backward_of, decode_of, recomputed_of
from modelbudget.memory.adamw_temporaries import Tensor, counts

GROUP = "recurrence"
SIZES = ("n_mlstm_head", "d_mlstm_key", "d_mlstm_value")


class MLSTMFields(Architecture):
    d_model: Count = Field(description="width of the residual stream")
    n_mlstm_head: Size = Field(0, description="mixers: mlstm: heads, each with one matrix")
    d_mlstm_key: Size = Field(0, description="mixers: mlstm: channels of a query or key")
    d_mlstm_value: Size = Field(0, description="mixers: mlstm: channels of a value")


FIELDS = MLSTMFields


def tensors(a: Fields) -> list[Tensor]:
    """Beck et al. 2024, eq. 19 to 27; Beck et al. 2025 (xLSTM 7B), §3: projections, gates, norm.

    Input and forget gate are one number for each head and have a bias; the output gate has one for
    each channel and none. The norm has a scale for each channel.
    """
    key, value = a.n_mlstm_head * a.d_mlstm_key, a.n_mlstm_head * a.d_mlstm_value
    of_gate = a.d_model * a.n_mlstm_head, a.n_mlstm_head
    return [
        Tensor("query", a.d_model * key),
        Tensor("key", a.d_model * key),
        Tensor("value", a.d_model * value),
        *(Tensor("input_gate", numbers) for numbers in of_gate),
        *(Tensor("forget_gate", numbers) for numbers in of_gate),
        Tensor("gate", a.d_model * value),
        Tensor("norm", value),
        Tensor("output", value * a.d_model),
    ]


def parameters(a: Fields) -> Values:
    """Sum the tensors of each component."""
    found = dict.fromkeys(counts(tensors(a)), 0)
    for tensor in tensors(a):
        found[tensor.name] += tensor.numbers
    return found


def flops(a: Fields, r: Run) -> Values:
    """Two operations for each weight and token, and for each number of a matrix that is read.

    Reading a matrix of one row is no product.
    """
    n = 2 * tokens(r)
    key, value = a.n_mlstm_head * a.d_mlstm_key, a.n_mlstm_head * a.d_mlstm_value
    return {
        "query": n * a.d_model * key,
        "key": n * a.d_model * key,
        "value": n * a.d_model * value,
        "input_gate": n * a.d_model * a.n_mlstm_head,
        "forget_gate": n * a.d_model * a.n_mlstm_head,
        "gate": n * a.d_model * value,
        "": n * key * a.d_mlstm_value * positive(a.d_mlstm_key - 1),
        "output": n * value * a.d_model,
    }


flops_backward = backward_of(flops)
flops_recomputed = recomputed_of(flops)
flops_decode = decode_of(flops)


def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of matrix, normaliser and stabiliser of each head."""
    numbers = a.d_mlstm_key * a.d_mlstm_value + a.d_mlstm_key + 1
    return {"": state_bytes(r) * r.batch * a.n_mlstm_head * numbers}
