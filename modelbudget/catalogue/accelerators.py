"""Memory of accelerators: reads `configs/accelerators.yaml`."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from modelbudget.architecture.base import Count
from modelbudget.common.strict import Strict, read_strict


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
