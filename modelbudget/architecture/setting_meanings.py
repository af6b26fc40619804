"""What each setting of a run means, from `configs/run_settings.yaml`."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from modelbudget.architecture.record import Record
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS

Settings = TypeVar("Settings", bound=type[Record])


@cache
def _meanings() -> dict[str, dict[str, str]]:
    return load_yaml(CONFIGS / "run_settings.yaml")


def described(section: str) -> Callable[[Settings], Settings]:
    """Give the fields of a record the descriptions of a section of the file."""

    def describe(record: Settings) -> Settings:
        for name, meaning in _meanings()[section].items():
            record.model_fields[name].description = meaning
        return record

    return describe
