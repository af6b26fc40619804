"""Memory of accelerators: reads `configs/accelerators.yaml`."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from modelbudget.architecture.base import Count
from modelbudget.architecture.record import MAX_COUNT
from modelbudget.common.byte_sizes import AS_GIVEN, EXAMPLES, GB, GIB, size
from modelbudget.common.errors import InputError
from modelbudget.common.number_format import si_bytes
from modelbudget.common.paths import ACCELERATORS
from modelbudget.common.strict import Strict, read_strict
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show

MAKERS = ("nvidia", "geforce", "tesla", "amd", "instinct", "radeon")
"""Words before the name of a device."""
MAC = re.compile(r"(mac(book|mini|studio)?|mps|m[1-9])(air|pro|max|ultra)?(?P<memory>\d+gb)?")
"""What people call a device of Apple, plain."""
SEVERAL = (
    re.compile(r"(?P<n>\d+)\s*[x×*]\s*(?P<name>\S.*)", re.IGNORECASE),
    re.compile(r"(?P<name>\S.*?)\s*[x×*]\s*(?P<n>\d+)", re.IGNORECASE),
)


Platform = Literal["cuda", "mps", "xla"]


class Accelerator(Strict):
    """One kind of device; `bytes` is its memory, less what is `occupied`."""

    name: str = Field(min_length=1)
    bytes: Count
    source: str = Field(min_length=1)
    driver_gib: float | None = Field(default=None, gt=0)
    driver_source: str = ""
    in_charts: bool = True
    has_flash: bool = True
    platform: Platform = "cuda"
    occupied: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def cite(self) -> Self:
        """Reject a driver's report without its source, and a source without a report."""
        if (self.driver_gib is None) == bool(self.driver_source):
            raise ValueError(
                f"driver_gib = {self.driver_gib}, driver_source = {self.driver_source!r}: "
                "allowed: both or none"
            )
        return self

    def as_reported(self) -> Self:
        """Return the device with the bytes that its driver reports, if these are known."""
        if self.driver_gib is None:
            return self
        reported = {"bytes": int(self.driver_gib * GIB), "source": self.driver_source}
        return self.model_copy(update=reported)

    @property
    def short_source(self) -> str:
        """Whose number `bytes` is, in a table's width."""
        less = f", less {si_bytes(self.occupied)}" if self.occupied else ""
        if self.driver_gib is not None:
            return f"driver{less}"
        return f"{AS_GIVEN if self.source == AS_GIVEN else 'data sheet'}{less}"

    def with_occupied(self, n_bytes: int) -> Self:
        """Return the device with so many bytes less, which something else holds."""
        left = {"bytes": max(self.bytes - n_bytes, 0), "occupied": self.occupied + n_bytes}
        return self.model_copy(update=left)


class AcceleratorsFile(Strict):
    """The file: each name once."""

    accelerators: list[Accelerator] = Field(min_length=1)

    @model_validator(mode="after")
    def differ(self) -> Self:
        """Reject two entries with the same name."""
        places = range(len(self.accelerators))
        if mistake := _repeated(self.accelerators, places, "name"):
            raise ValueError(mistake)
        return self


def all_accelerators(path: Path) -> list[Accelerator]:
    """Read all accelerators, the smallest memory first. Raises InputError."""
    return sorted(_read(path), key=attrgetter("bytes"))


def accelerators(path: Path) -> list[Accelerator]:
    """Read the accelerators of sweeps and charts, with their drivers' bytes, the smallest first.

    Each memory is one line in a chart. Raises InputError.
    """
    devices = _read(path)
    places = [i for i, device in enumerate(devices) if device.in_charts]
    mistake = _repeated(devices, places, "bytes")
    if mistake:
        mistake += ", so name both in one entry, or in_charts: false"
    elif not places:
        mistake = "accelerators: none is in charts; allowed: at least one without in_charts: false"
    if mistake:
        raise InputError([f"{path}: {mistake}"])
    return sorted((devices[i].as_reported() for i in places), key=attrgetter("bytes"))


def _read(path: Path) -> list[Accelerator]:
    return read_strict(path, AcceleratorsFile, Accelerator).accelerators


def _repeated(devices: list[Accelerator], places: Iterable[int], field: str) -> str | None:
    """Return which of some entries has the value of one before."""
    first: dict[str, int] = {}
    for i in places:
        value = getattr(devices[i], field)
        before = first.setdefault(_plain(value), i)
        if before != i:
            return (
                f"accelerators[{i}].{field} = {value!r}: is that of accelerators[{before}] too; "
                "allowed: once"
            )
    return None


def named(name: str, known: Sequence[Accelerator]) -> Accelerator:
    """Return an accelerator by its name, with or without its memory: h100, h100-80gb, 4090.

    Raises ValueError with all names.
    """
    asked = _plain(name)
    for maker in MAKERS:
        asked = asked.removeprefix(maker)
    for device in known:
        plain = _plain(device.name)
        short = plain.removeprefix("rtx").removeprefix("tpu")
        memory = f"{device.bytes // GB}gb"
        if asked in (plain, short, plain + memory, short + memory):
            return device
    mac = MAC.fullmatch(asked)
    first = "apple" if mac else asked
    names = sorted(map(_label, known), key=lambda name: not _plain(name).startswith(first))
    of_mac = mac and f"apple-{mac['memory']}"
    meant = of_mac if of_mac in names else name
    allowed = offered(meant, names, str(ACCELERATORS), n_first=4)
    raise ValueError(f"unknown accelerator {show(name)}{allowed}")


def named_or_sized(text: str, known: Sequence[Accelerator]) -> Accelerator:
    """Return an accelerator by its name, with the bytes of its driver, or of a size: 24GB, 24GiB.

    Raises ValueError with what is allowed.
    """
    try:
        return named(text, known).as_reported()
    except ValueError as error:
        n_bytes = size(text)
        if not n_bytes or n_bytes > MAX_COUNT:
            names = str(error).replace("(allowed: ", f"(allowed: {EXAMPLES}, ")
            raise ValueError(_meant(text, known) or names) from None
    return Accelerator(name=f"a device of {text}", bytes=n_bytes, source=AS_GIVEN)


def _meant(text: str, known: Sequence[Accelerator]) -> str | None:
    """Return how several devices, or a number of GB, are written: 2x4090, 24, 24G."""
    if without_unit := re.fullmatch(r"\s*([1-9]\d{0,3})\s*([GT]?)\s*", text.upper()):
        return f"no unit; write {without_unit[1]}{without_unit[2] or 'G'}B"
    for several in filter(None, (pattern.fullmatch(text.strip()) for pattern in SEVERAL)):
        with suppress(ValueError):
            named_or_sized(several["name"], known)
            return f"several devices; write {several['name']}, with `devices={several['n']}`"
    return None


def _label(device: Accelerator) -> str:
    """Return a name as a command takes it, with the memory if it is a whole number of GB."""
    name = device.name.lower().replace(" ", "-")
    is_whole = not device.bytes % GB and not name.endswith("gb")
    return f"{name}-{device.bytes // GB}gb" if is_whole else name


def _plain(name: str | int) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).casefold())
