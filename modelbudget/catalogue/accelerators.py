"""Memory of accelerators: reads `configs/accelerators.yaml`."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from modelbudget.architecture.base import Count
from modelbudget.common.errors import InputError
from modelbudget.common.files import load_yaml
from modelbudget.common.mistakes import describe


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Accelerator(_Strict):
    """One kind of device; `bytes` is its memory."""

    name: str = Field(min_length=1)
    bytes: Count
    source: str = Field(min_length=1, description="where its memory was read")


class _File(_Strict):
    accelerators: list[Accelerator] = Field(min_length=1)

    @model_validator(mode="after")
    def differ(self) -> Self:
        """Refuse two entries with the same name or the same memory: each is one line in a chart."""
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
    try:
        devices = _File.model_validate(load_yaml(path)).accelerators
    except ValidationError as error:
        keys = [*_File.model_fields, *Accelerator.model_fields]
        raise InputError([f"{path}: {line}" for line in describe(error, keys)]) from None
    return sorted(devices, key=lambda device: device.bytes)
