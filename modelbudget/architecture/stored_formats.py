"""Formats of quantised weights as data: the tensors that a library stores in place of a matrix.

Read from `configs/weight_formats/*.yaml`, one library a file. A shape is a list of expressions over
`rows` (output channels), `columns` (input channels), `block`, `group`, `has_bias` and `letters` (of
the dtype's name). Predictions evaluate them over any reading, modules as Python integers.
"""

import ast
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

from pydantic import Field

from modelbudget.architecture.arithmetic import ceil_div, largest, positive
from modelbudget.common.expressions import Expression
from modelbudget.common.files import yaml_files
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, read_strict

BYTES = {
    "float32": 4, "float16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "float8_e4m3fn": 1, "float8_e8m0fnu": 1,
}  # fmt: skip
OF_RUN = "dtype"
"""In place of a dtype: that of the run."""
MAX_DIGITS = 9
"""Digits of the largest size that is written out in a file."""


class StoredTensor(Strict):
    """One tensor: its dtype and the expressions of its sizes."""

    dtype: str
    shape: list[int | str]

    def n_numbers(self, sizes: Mapping[str, Any]):
        """Count its numbers, for sizes of any reading."""
        n: Any = 1
        for text in self.shape:
            n = n * (text if isinstance(text, int) else value_of(text, sizes))
        return n

    def n_bytes(self, sizes: Mapping[str, Any], bytes_of_dtype):
        return self.n_numbers(sizes) * (
            bytes_of_dtype if self.dtype == OF_RUN else BYTES[self.dtype]
        )


class StoredFormat(Strict):
    """The tensors of one matrix in memory, and where they differ, in a file."""

    tensors: dict[str, StoredTensor]
    in_file: dict[str, StoredTensor | None] = Field(default_factory=dict)
    block: int = 0
    blocks: list[int] = Field(default_factory=list)
    groups: bool = False
    group_divisors: list[int] = Field(default_factory=list)
    needs: str = ""
    otherwise: Literal["refused", "dtype"] = "refused"
    made_for_product: StoredTensor | None = None
    product: Literal["copy", "int8"] = "copy"
    n_without_copy: int = 0
    in_shards: str = ""
    is_witnessed: bool = True
    config: list[dict[str, list[bool | int | str | None]]] = Field(default_factory=list)

    @cached_property
    def tensors_in_file(self) -> dict[str, StoredTensor]:
        merged = self.tensors | self.in_file
        return {name: tensor for name, tensor in merged.items() if tensor is not None}

    @property
    def has_bias(self) -> bool:
        """Whether the bias is one of its tensors, in place of the layer's own."""
        return "bias" in self.tensors


class Library(Strict):
    """What packs weights: its formats, and which modules it converts."""

    library: str
    source: str
    witness: str
    converts: list[Literal["linear", "gates", "conv1d", "experts", "vocabulary", "routers"]]
    product: Literal["copy", "stored", "unknown"]
    file_is_known: bool = True
    quant_method: str
    settings: dict[str, list[str]] = Field(default_factory=dict)
    formats: dict[str, StoredFormat]


class Known(NamedTuple):
    """A format and the library that has it."""

    format: StoredFormat
    library: Library

    @property
    def is_witnessed(self) -> bool:
        return self.library.witness != "none" and self.format.is_witnessed


def _read() -> dict[str, Known]:
    libraries = (
        read_strict(path, Library, StoredFormat, StoredTensor)
        for path in yaml_files(CONFIGS / "weight_formats")
    )
    return {
        word: Known(stored, library)
        for library in libraries
        for word, stored in library.formats.items()
    }


FORMATS: dict[str, Known] = _read()
"""By the word of the run field `weights`."""


IN_SHARDS = [word for word, known in FORMATS.items() if known.format.in_shards]
"""Formats of which FSDP divides the packed numbers."""


OF_EACH_LAYER = ("bitsandbytes", "quanto", "torchao")
"""Methods that convert the linear layers which transformers gives them, and nothing else."""


def converts_class(weights: str) -> bool:
    """Whether it is known which layers of a class of transformers have a format of a run."""
    return weights in FORMATS and FORMATS[weights].library.quant_method in OF_EACH_LAYER


OF_STORED_EXPERTS = (
    "weights: no library is known that trains over quantised stacked experts; allowed: "
    "weights_of: dense, or an adapter over a format that leaves them in the dtype (bnb-4bit)"
)
"""Why a training step has no program."""


def path_in_layer(path: str) -> str:
    """Return the path of a part from its layer on; of a part outside of the layers all of it."""
    names = path.split(".")
    return ".".join(names[names.index("layer") + 1 :]) if "layer" in names else path


def file_is_known(weights: str) -> bool:
    """Whether it is known what the library of a format writes to a file."""
    return weights not in FORMATS or FORMATS[weights].library.file_is_known


def sizes_of(stored: StoredFormat, rows, columns, has_bias, r, is_second=0) -> dict[str, Any]:
    """Return the values of the names in expressions, for sizes of any reading.

    `is_second`: the format is that of routed experts, which may have groups and blocks of its own.
    """
    group, block = r.weight_group, r.weight_block
    if is_second:
        own_group, own_block = r.expert_weight_group, r.expert_weight_block
        group = own_group + (1 - positive(own_group)) * group
        block = own_block + (1 - positive(own_block)) * block
    group = group + (1 - positive(group)) * columns
    if stored.group_divisors:
        group = columns
        for divisor in reversed(stored.group_divisors):
            fits = divides(columns, divisor)
            group = fits * divisor + (1 - fits) * group
    block = block + (1 - positive(block)) * stored.block
    return {
        "rows": rows, "columns": columns, "has_bias": has_bias, "letters": len(r.dtype),
        "block": block, "group": largest(1, group),
    }  # fmt: skip


def value_of(text: str, sizes: Mapping[str, Any]):
    """Return the value of an expression of a shape, for sizes of any reading."""
    return _value(_tree(text), sizes)


def divides(x, y):
    """1 where y divides x, else 0."""
    return 1 - positive(y * ceil_div(x, y) - x)


@cache
def _tree(text: str) -> ast.AST:
    return Expression(text).tree


def _value(node: ast.AST, sizes: Mapping[str, Any]) -> Any:
    def of(node: ast.AST):
        return _value(node, sizes)

    match node:
        case ast.Constant(value=number):
            return number
        case ast.Name(id=name):
            return sizes[name]
        case ast.BoolOp(op=ast.And(), values=parts):
            product = 1
            for part in parts:
                product = product * of(part)
            return product
        case ast.Compare(left=ast.BinOp(left=x, op=ast.Mod(), right=y)):
            return divides(of(x), of(y))
        case ast.Call(func=ast.Name(id="digits"), args=[x]):
            n = of(x)
            return 1 + sum(positive(n - (10**i - 1)) for i in range(1, MAX_DIGITS))
        case ast.Call(args=[x]):  # ceil
            return of(x)
        case ast.BinOp(left=x, op=op, right=y):
            x, y = of(x), of(y)
            match op:
                case ast.Add():
                    return x + y
                case ast.Mult():
                    return x * y
                case ast.Div():  # exact, or inside of ceil
                    return ceil_div(x, y)
    raise AssertionError(f"{ast.dump(node)}: not in a shape")
