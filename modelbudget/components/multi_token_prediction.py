"""Multi-token prediction: further layers, each of which predicts one token further ahead.

DeepSeek-AI 2024 (DeepSeek-V3), §2.2. Each normalises the states of the layer before and the
embedding of the token ahead, projects both together to d_model, and has a norm before the head.
Embedding and head are those of the model. Inference leaves these layers out.
"""

from types import SimpleNamespace

from modelbudget.architecture.arithmetic import is_nothing, positive
from modelbudget.architecture.base import Architecture, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.terms import Terms, part
from modelbudget.common.attributes import with_attributes
from modelbudget.components import layer_program, norm
from modelbudget.memory.parameter_tensors import Tensor, matrix
from modelbudget.operations.joining import cat
from modelbudget.operations.linear_layer import make_linear
from modelbudget.operations.part import make_part


class MultiTokenFields(Architecture):
    n_mtp_layer: Size = 0


def is_absent(a: Fields) -> bool:
    """Whether the model has no such layer, whatever its fields are."""
    return is_nothing(a.n_mtp_layer)


def has_none(a: Fields):
    """Return 1 where the model has no such layer."""
    return 1 - positive(a.n_mtp_layer)


def own_layers(a: Fields) -> Fields:
    """Return the fields of these layers as those of a model."""
    last = {name: getattr(a, name).split()[-1] for name in ("mixers", "mlps")}
    return SimpleNamespace(**vars(a) | last | {"n_layer": a.n_mtp_layer, "n_dense_layer": 0})


def of_layers(a: Fields, in_layers: Terms, one_norm, projection) -> Terms:
    """Return the terms of all such layers: each has a layer, three norms and a projection."""
    norms = dict.fromkeys(("norm.embedding", "norm.states", "norm.final"), one_norm)
    inside = {f"mtp.{name}": term for name, term in in_layers.items()}
    return inside | part("mtp", norms | {"combine": projection}, a.n_mtp_layer)


def projection(a: Fields) -> Tensor:
    """Return the matrix that projects two vectors to one."""
    return matrix("combine", a.d_model, 2 * a.d_model)


def program(a: Fields, r: Run, mixer: str, mlp: str):
    """States and embeddings of the token ahead, both (batch, length, d_model), to states."""
    norms = {name: norm.make(f"norm.{name}", a, r) for name in ("embedding", "states", "final")}
    combine = make_linear("combine", 2 * a.d_model, a.d_model)
    inner = make_part("layer", layer_program.program, a, r, mixer, mlp)

    def forward(x, embedded, *positions):
        both = cat((norms["embedding"](embedded), norms["states"](x)))
        return inner(combine(both), *positions)

    return with_attributes(forward, final=norms["final"])
