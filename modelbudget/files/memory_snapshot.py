"""Torch's memory snapshot (`torch.cuda.memory._dump_snapshot`), read without executing it.

A pickle may call any function. The unpickler here finds no class and no function, so that only
numbers, text, lists, tuples, dictionaries and sets are left.
"""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NamedTuple

from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show

MAX_BYTES, MAX_OPERATIONS = 2**28, 2 * 10**7
"""Bytes and operations of the longest pickle that is read."""
NOT_RUN = {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD",
           "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "BYTEARRAY8", "NEXT_BUFFER"}  # fmt: skip


class Snapshot(NamedTuple):
    """Bytes of the allocator: reserved in segments, allocated in blocks, requested by tensors."""

    reserved: int
    allocated: int
    requested: int
    n_segment: int
    n_block: int


class _NothingToRun(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a persistent object")


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot. Raises InputError for anything else, and before anything would be run."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError([f"{path}: cannot be read: {error.strerror}"]) from None
    if len(content) > MAX_BYTES:
        raise InputError([f"{path}: more than {MAX_BYTES:,} bytes"])
    try:
        for n, (operation, argument, _) in enumerate(pickletools.genops(content)):
            if operation.name.endswith("PUT") and int(argument or 0) > MAX_OPERATIONS:
                raise InputError(
                    [f"{path}: {operation.name} {argument}: more than {MAX_OPERATIONS:,}"]
                )
            if operation.name in NOT_RUN:
                raise InputError([f"{path}: {operation.name}: would run code; a snapshot of torch "
                                  "has numbers and text alone"])  # fmt: skip
            if n > MAX_OPERATIONS:
                raise InputError([f"{path}: more than {MAX_OPERATIONS:,} operations"])
        value = _NothingToRun(io.BytesIO(content)).load()
        return _summed(value)
    except InputError:
        raise
    except Exception as error:  # a broken pickle raises almost anything
        raise InputError([f"{path}: no snapshot of torch: {show(str(error))}"]) from None


def _summed(value: Any) -> Snapshot:
    segments, live = value["segments"], []
    n_block = 0
    for segment in segments:
        n_block += len(segment["blocks"])
        if n_block > MAX_OPERATIONS:  # many segments may name one list
            raise ValueError(f"more than {MAX_OPERATIONS:,} blocks")
        live += [block for block in segment["blocks"] if block["state"] == "active_allocated"]
    totals = (
        sum(segment["total_size"] for segment in segments),
        sum(block["size"] for block in live),
        sum(block.get("requested_size", block["size"]) for block in live),
    )
    if not all(type(n) is int and 0 <= n < 2**63 for n in totals):
        raise ValueError("sizes must be whole numbers")
    return Snapshot(*totals, len(segments), len(live))
