"""What a name on the command line stands for: a published model, a config.json, or a function."""

from pathlib import Path

from modelbudget.catalogue import models
from modelbudget.catalogue.models import Base
from modelbudget.common import user_code
from modelbudget.common.errors import InputError
from modelbudget.common.paths import CONFIGS
from modelbudget.families import families
from modelbudget.huggingface.checkpoint_files import HEADER, INDEX
from modelbudget.sweeps.read import file_base

CATALOGUE = CONFIGS / "models"


def find(name: str) -> Base:
    """Return the model that `name` stands for. Raises InputError with what is allowed.

    `name` is a model, series or family of the catalogue; a config.json; a folder with one, or a
    safetensors file or index beside it; or package.module:function, whose code is run only to
    measure it.
    """
    if config := _config(name):
        return file_base(config.parent, config.name)
    if ":" in name:
        user_code.allow([name])
        if why := user_code.refusal(name):
            raise InputError([why])
        return Base(name, name, families()["module"], {"module": name}, {})
    try:
        return models.find(CATALOGUE, name)
    except ValueError as error:
        allowed = (
            "a model of `modelbudget models`, a config.json, a folder with one, or file:function"
        )
        raise InputError([f"MODEL: {error}; or {allowed}"]) from None


def _config(name: str) -> Path | None:
    """Return the config.json that a path means, None if it is no path. Raises InputError."""
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    elif name.endswith((HEADER, INDEX)):
        _must_be_file(path, "an existing file")
        path = path.with_name("config.json")
    elif path.suffix != ".json":
        return None
    _must_be_file(path, "a config.json or a folder with one")
    return path


def _must_be_file(path: Path, allowed: str) -> None:
    if not path.is_file():
        raise InputError([f"{path}: no such file; allowed: {allowed}"])
