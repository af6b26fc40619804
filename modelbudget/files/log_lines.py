"""Numbers and settings in logs, by the patterns of `configs/logs.yaml`. Nothing is executed."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import cached_property
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import Field

from modelbudget.common.byte_sizes import UNITS
from modelbudget.common.errors import InputError
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, shipped

MAX_BYTES, MAX_LINE, MAX_NUMBERS = 2**23, 2**14, 500
"""Bytes of a log and of a line that are read, and numbers that are explained."""
SETTING = "setting_"


class Pattern(Strict):
    """One line of a tool.

    `begins`: lines about a model begin with it, whose file is the group `text`. Of several models
    the first is read.
    """

    tool: str
    pattern: str
    begins: bool = False
    quantity: str = ""
    unit: str = ""
    name: str = ""
    settings: dict[str, str] = Field({})
    source: str = Field(min_length=1)

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)


class PatternsFile(Strict):
    """The file."""

    lines: list[Pattern]


patterns = shipped(CONFIGS / "logs.yaml", PatternsFile, Pattern)


class Number(NamedTuple):
    """A number of a file as it is printed, with its line (from 1 on); `name`: as the tool says.

    `settings`: those of the same line, by name.
    """

    tool: str
    quantity: str
    text: str
    unit: str
    line: int
    name: str = ""
    settings: Mapping[str, str] = MappingProxyType({})

    @property
    def value(self) -> Decimal:
        return Decimal(self.text.replace(",", ""))

    @property
    def n_bytes(self) -> int:
        """The number in bytes, if it has a unit of bytes; else as it is."""
        return int(self.value * UNITS.get(self.unit, 1))

    @property
    def rounding(self) -> int:
        """The bytes by which rounding to the last digit may change it."""
        digits, size = len(self.text.partition(".")[2]), UNITS.get(self.unit, 1)
        is_rounded = digits > 0 or size > 1
        return ceil(size / (2 * Decimal(10) ** digits)) if is_rounded else 0


class Log(NamedTuple):
    """What a log says: numbers, settings by name, and the tools that wrote it.

    `metadata`: of a .gguf file that llama.cpp reads, as far as its log prints it.
    """

    numbers: list[Number]
    settings: dict[str, str]
    tools: list[str]
    metadata: dict[str, Any]


def read_log(path: Path) -> Log:
    """Read the numbers of a log. Raises InputError if there are none, or it cannot be read."""
    log, files = Log([], {}, [], {}), set()
    for number, line in enumerate(_lines(path), 1):
        for pattern in patterns().lines:
            for match in pattern.regex.finditer(line):
                if pattern.begins:
                    files.add(match["text"])
                else:
                    _add(log, pattern, match, number)
        if len(log.numbers) >= MAX_NUMBERS or len(files) > 1:
            break
    if not log.numbers:
        tools = ", ".join(dict.fromkeys(pattern.tool for pattern in patterns().lines))
        raise InputError([f"{path}: no number of a known line; known: logs of {tools}"])
    return log


def _lines(path: Path) -> Iterator[str]:
    """Yield the beginning of each line of a file's beginning."""
    try:
        with path.open("rb") as file:
            n_left = MAX_BYTES
            while n_left > 0 and (line := file.readline(MAX_LINE)):
                n_left -= len(line)
                yield line.decode("utf-8", errors="replace").rstrip("\r\n")
    except OSError as error:
        raise InputError([f"{path}: cannot be read: {error.strerror}"]) from None


def _add(log: Log, pattern: Pattern, match: re.Match[str], line: int) -> None:
    groups = {name: text for name, text in match.groupdict().items() if text}
    if key := groups.get("key"):
        text = groups["text"].strip()
        log.metadata.setdefault(key, int(text) if text.isdecimal() else text)
    settings = pattern.settings | {
        name.removeprefix(SETTING): text.replace(",", "")
        for name, text in groups.items()
        if name.startswith(SETTING)
    }
    for name, value in settings.items():
        log.settings.setdefault(name, value)
    if pattern.quantity:
        printed = groups.get("unit", "B")
        unit = pattern.unit or ("bytes" if printed == "B" else printed)
        number = Number(pattern.tool, pattern.quantity, groups["value"].rstrip(".,"), unit, line,
                        groups.get("name", pattern.name).strip(), settings)  # fmt: skip
        try:
            number.value  # noqa: B018
        except InvalidOperation:
            return
        if number not in log.numbers:
            log.numbers.append(number)
        if pattern.tool not in log.tools:
            log.tools.append(pattern.tool)
