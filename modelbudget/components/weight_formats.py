"""Bytes of quantised weight matrices, from the tensors of their format (`stored_formats.py`)."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.run_values import bytes_of
from modelbudget.architecture.stored_formats import (
    FORMATS,
    OF_RUN,
    divides,
    path_in_layer,
    sizes_of,
    value_of,
)
from modelbudget.architecture.terms import join
from modelbudget.operations.part import NoProgramError

HEAD = "head"
"""The component of the matrix that makes logits."""
KEPT = "index_weight"
"""The linear layer of layers that no format converts."""
TOKEN = "embedding.token"
"""The component of the table of tokens, which a library of `vocabulary` stores too."""
MTP = "mtp"
"""The part of layers that predict further tokens, whose parts have the names of others in it."""
GATES = ("shared_gate", "beta", "decay")
"""Linear layers with one output, or one for each head: of formats whose library has `gates`."""


class Matrix(NamedTuple):
    """Weights of `n` linear layers that a format can convert: d_in channels to d_out channels.

    `routed` 1: of routed experts. `bias` 1: the layers have one, which is no part of the matrix.
    `part`: that of the layer which has them; empty for the head. `widths`: outputs of each of the
    layers that some classes have in place of it.
    """

    name: str
    d_in: Any
    d_out: Any
    n: Any = 1
    routed: int = 0
    bias: Any = 0
    part: str = ""
    widths: tuple = ()

    @property
    def path(self) -> str:
        """The part and the name in it."""
        return join(self.part, self.name)


def format_of(r, routed: int, path: str = "") -> str | None:
    """Return the format of routed experts, of the head, or of other matrices; None: the dtype."""
    names = path, path.removeprefix(f"{MTP}.")
    if any(_is_in(name, kept) for name in names for kept in r.kept_in_dtype.split()):
        return None
    if routed and r.expert_weights != "weights":
        return r.expert_weights
    library, is_of_layers = FORMATS[r.weights].library, path not in (HEAD, TOKEN)
    if path.rpartition(".")[2] in GATES and "gates" not in library.converts:
        return None
    part = "vocabulary" if not is_of_layers else "experts" if routed else "linear"
    is_stored = {
        "library": part in library.converts,
        "layers": is_of_layers,
        "dense": is_of_layers and not routed,
        "experts": bool(routed),
        "all": path != TOKEN or converts_vocabulary(r),
    }[r.weights_of]
    return r.weights if is_stored else None


def converts_vocabulary(r) -> bool:
    """Whether the library of a run's format stores the table of tokens in it."""
    return r.weights in FORMATS and "vocabulary" in FORMATS[r.weights].library.converts


def _is_in(path: str, kept: str) -> bool:
    """Whether a matrix is that of a name, or in the part of a name."""
    return f"{path}.".startswith(f"{kept}.")


def names_of_nothing(r, paths: Iterable[str]) -> str:
    """Return the first name in `kept_in_dtype` that no matrix has; empty if there is none.

    A file may leave out what predicts further tokens, which a model may be counted without.
    """
    names = (n for n in r.kept_in_dtype.split() if n != "none" and not _is_in(n, MTP))
    return next((name for name in names if not any(_is_in(path, name) for path in paths)), "")


def converts(r, routed: int, path: str = "") -> bool:
    """Whether a run stores routed experts, the head, or the other matrices in a format."""
    return format_of(r, routed, path) is not None


def matrix_bytes(m: Matrix, r, in_file: bool = False):
    """Return the bytes of one of the matrices and of its bias, in the run's weight format."""
    size = bytes_of(r.dtype)
    dense = size * m.d_in * m.d_out + size * m.bias * m.d_out
    word = format_of(r, m.routed, m.path)
    if word is None:
        return dense
    stored = FORMATS[word].format
    sizes = _sizes(m, r)
    tensors = stored.tensors_in_file if in_file else stored.tensors
    packed = sum(tensor.n_bytes(sizes, size) for tensor in tensors.values())
    packed = packed + (not stored.has_bias) * size * m.bias * m.d_out
    if stored.otherwise == "dtype":
        fits = value_of(stored.needs, sizes)
        return fits * packed + (1 - fits) * dense
    return packed


def tensor_bytes(m: Matrix, r) -> list:
    """Return the bytes of each tensor that stores one of the matrices; of none in the dtype."""
    word = format_of(r, m.routed, m.path) if r.weights in FORMATS else None
    if word is None:
        return []
    sizes, size = _sizes(m, r), bytes_of(r.dtype)
    return [tensor.n_bytes(sizes, size) for tensor in FORMATS[word].format.tensors.values()]


def fit(matrices: list[Matrix], r):
    """1 where the format can store all of the matrices, else 0."""
    result = 1
    for m in matrices:
        word = format_of(r, m.routed, m.path)
        stored = FORMATS[word].format if word else None
        if stored and stored.needs and stored.otherwise != "dtype":
            result = result * value_of(stored.needs, _sizes(m, r))
    return result


def _sizes(m: Matrix, r) -> dict[str, Any]:
    """Return the values of the names in expressions, of a matrix that has a format."""
    word = format_of(r, m.routed, m.path) or r.weights
    is_second = m.routed and r.expert_weights != "weights"
    return sizes_of(FORMATS[word].format, m.d_out, m.d_in, m.bias, r, is_second)


def misfit(matrices: list[Matrix], r) -> str:
    """Return a line about the first matrix that the format cannot store; empty if there is none."""
    for m in matrices:
        if m.n and not fit([m], r):
            word = format_of(r, m.routed, m.path) or r.weights
            needs = FORMATS[word].format.needs
            return f"{m.name} of {m.d_out:,} rows by {m.d_in:,} columns: {word} needs {needs}"
    return ""


def by_format(matrices: list[Matrix], r, in_file: bool = False) -> dict[str, Any]:
    """Return the bytes that the format adds to those in the run's dtype, by component.

    They are negative where it is smaller.
    """
    change: Counter[str] = Counter()
    for m in matrices:
        dense = bytes_of(r.dtype) * m.d_out * (m.d_in + m.bias)
        change[m.name] = change[m.name] + m.n * (matrix_bytes(m, r, in_file) - dense)
    return dict(change)


class StoredWeights:
    """A format of a run, for the matrices of linear layers in a program.

    `of_experts`: that of routed experts. `in_file`: bytes are those of the tensors in a file.
    """

    def __init__(self, r, word: str | None = None, in_file: bool = False):
        if converts_vocabulary(r):
            raise NoProgramError(f"weights: {r.weights}, whose kernels are not torch's")
        self.r, self.compute_dtype, self.is_second = r, r.dtype, word is not None
        self.stored = FORMATS[word or r.weights].format
        self.tensors = self.stored.tensors_in_file if in_file else self.stored.tensors
        has_another = word is None and r.expert_weights != "weights"
        self.of_experts = StoredWeights(r, r.expert_weights) if has_another else self
        self.kept: tuple[str, ...] = ()
        self.is_stored: dict[str, bool] = self.of_experts.is_stored if has_another else {}
        """By path in a layer, of each matrix that a format could have."""
        own_bias = self.stored.tensors.get("bias")
        is_other = own_bias is not None and own_bias.dtype != OF_RUN
        self.bias_dtype = own_bias.dtype if own_bias and is_other else r.dtype

    def begin(self, a) -> None:
        """Read which linear layers the class of a model keeps in the dtype."""
        self.kept = a.kept_by_class()

    def finish(self) -> None:
        """Raise NoProgramError if no matrix is stored, or none has a name in `kept_in_dtype`."""
        if unknown := names_of_nothing(self.r, self.is_stored):
            allowed = ", ".join(self.is_stored)
            raise NoProgramError(f"kept_in_dtype = {unknown}: no such matrices; allowed: {allowed}")
        if not any(self.is_stored.values()):
            raise NoProgramError(
                f"weights_of = {self.r.weights_of}: all matrices would stay in the dtype"
            )

    def stores(self, path: str, d_in, d_out, routed: bool = False) -> bool:
        names, place = path.split("."), path_in_layer(path)
        if names[0] == MTP or names[-1] == KEPT or place in self.kept:
            return False
        self.is_stored[place] = converts(self.r, routed, place)
        if not self.is_stored[place]:
            return False
        line = misfit([Matrix(place, d_in, d_out, routed=routed)], self.r)
        if line:
            raise NoProgramError(f"weights: {line}")
        return not self.stored.needs or bool(value_of(self.stored.needs, self._sizes(d_in, d_out)))

    def n_bytes(self, d_in, d_out, has_bias: bool):
        """Return the bytes of the stored matrix, and of its bias if the format has that too."""
        n_bytes = self._n_bytes(d_in, d_out, has_bias)
        bias = n_bytes.pop("bias", None)
        return sum(n_bytes.values()), bias

    def in_shards(self, d_in, d_out):
        """Return the numbers of the dtype that devices divide."""
        n_bytes, size = self._n_bytes(d_in, d_out)[self.stored.in_shards], bytes_of(self.r.dtype)
        if not divides(n_bytes, size):
            raise NoProgramError(f"weights: {d_out:,} rows by {d_in:,} columns in shards")
        return ceil_div(n_bytes, size)

    def _n_bytes(self, d_in, d_out, has_bias: bool = False) -> dict[str, Any]:
        sizes, size = self._sizes(d_in, d_out, has_bias), bytes_of(self.r.dtype)
        return {name: tensor.n_bytes(sizes, size) for name, tensor in self.tensors.items()}

    def made_for_product(self, d_in, d_out):
        """Return the numbers of what is made before the copy of a matrix, and their dtype."""
        if (made := self.stored.made_for_product) is None:
            return 0, "float32"
        return made.n_numbers(self._sizes(d_in, d_out)), made.dtype

    def _sizes(self, d_in, d_out, has_bias: bool = False):
        return sizes_of(self.stored, d_out, d_in, int(has_bias), self.r, self.is_second)
