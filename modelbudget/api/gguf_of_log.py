"""The model and the .gguf file of a log of llama.cpp, from the metadata that it prints."""

from collections import Counter
from pathlib import Path
from typing import Any

from modelbudget.api.explained import named_model
from modelbudget.api.gguf import GgufFile, gguf_file
from modelbudget.api.model import Model, model
from modelbudget.common.errors import InputError
from modelbudget.files.gguf_formats import gguf_formats
from modelbudget.files.gguf_model import NAME, bases_of_log
from modelbudget.files.log_lines import Log

OF_A_TYPE = "tensors of a type"
MOST_TABLES = 2
"""Tables of a file that are no parameters: RoPE's, of which some models have two."""


def model_of_llama_cpp(log: Log) -> Model | None:
    """Return the model whose file has as many tensors as a log prints, by its metadata.

    Else that with the name in it; None if neither is known.
    """
    path = Path(str(log.metadata.get(NAME, "model")))
    try:
        bases = bases_of_log(path, log.metadata) if by_type(log) else []
        models = (Model(base) for base in bases)
        if of := next((of for of in models if _has_as_many(of, log)), None):
            return of
    except InputError:
        pass
    name = named_model(path.name)
    return model(name) if name else None


def file_of(of: Model, log: Log) -> GgufFile | None:
    """Return the file of a model in the format that a log prints; None if it is not known."""
    printed = log.settings.get("file_type", "").strip()
    name = gguf_formats().printed_formats.get(printed, printed.partition(" - ")[0])
    try:
        return gguf_file(of, name, "importance" in log.settings)
    except InputError:
        return None


def by_type(log: Log) -> dict[str, int]:
    """Return how many tensors of each type a log prints."""
    of_type = (number for number in log.numbers if number.quantity == OF_A_TYPE)
    return {number.name.upper(): number.n_bytes for number in of_type}


def has_these_types(file: GgufFile, log: Log) -> bool:
    """Return whether a file has as many tensors of each type as a log prints, if it does."""
    printed, numbers = by_type(log), Counter(tensor.dtype for tensor in file.tensors)
    return not printed or _with_tables(numbers, printed.get("F32", 0)) == printed


def _has_as_many(of: Model, log: Log) -> bool:
    """Return whether the file of a model has as many matrices as a log prints, and vectors."""
    printed = by_type(log)
    n_vector, n_all = printed.get("F32", 0), sum(printed.values())
    a: Any = of.architecture
    if a.n_layer > n_all or (file := file_of(of, log)) is None:
        return False
    is_vector = Counter(tensor.dtype == "F32" for tensor in file.tensors)
    return _with_tables(is_vector, n_vector, True) == {True: n_vector, False: n_all - n_vector}


def _with_tables(numbers: Counter, printed: int, key: Any = "F32") -> Counter:
    """Return numbers of tensors with the tables that a file may have besides."""
    n_tables = printed - numbers[key]
    return numbers + Counter({key: n_tables if n_tables in range(MOST_TABLES + 1) else 0})
