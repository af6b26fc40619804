"""Memory of accelerators: reads `configs/accelerators.yaml`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from modelbudget.architecture.base import Count
from modelbudget.common.mistakes import show
from modelbudget.common.strict import Strict, read_strict

GB = 10**9


class Accelerator(Strict):
    """One kind of device; `bytes` is its memory."""

    name: str = Field(min_length=1)
    bytes: Count
    source: str = Field(min_length=1, description="where its memory was read")


class AcceleratorsFile(Strict):
    """The file: each name and each memory once."""

    accelerators: list[Accelerator] = Field(min_length=1)

    @model_validator(mode="after")
    def differ(self) -> Self:
        """Reject two entries with the same name or the same memory: each is one line in a chart."""
        for field in ("name", "bytes"):
            values = [getattr(device, field) for device in self.accelerators]
            for i, value in enumerate(values):
                if value in values[:i]:
                    raise ValueError(
                        f"accelerators[{i}].{field} = {value!r}: is that of "
                        f"accelerators[{values.index(value)}] too; allowed: once, so name both in "
                        "one entry"
                    )
        return self


def accelerators(path: Path) -> list[Accelerator]:
    """Read all accelerators, the smallest memory first. Raises InputError."""
    devices = read_strict(path, AcceleratorsFile, Accelerator).accelerators
    return sorted(devices, key=lambda device: device.bytes)


def named(name: str, known: Sequence[Accelerator]) -> Accelerator:
    """Return an accelerator by its name, with or without its memory: h100, h100-80gb, rtx-4090.

    Raises ValueError with all names.
    """
    for one in known:
        plain = _plain(one.name)
        if _plain(name) in (plain, f"{plain}{one.bytes // GB}gb"):
            return one
    allowed = ", ".join(
        f"{one.name.lower().replace(' ', '-')}-{one.bytes // GB}gb" for one in known
    )
    raise ValueError(f"unknown accelerator {show(name)} (allowed: {allowed})")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).casefold())
