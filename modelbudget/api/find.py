"""A model by what a user calls it: a name, a config.json, or a function of their own."""

from pathlib import Path

from modelbudget.catalogue import models
from modelbudget.catalogue.models import Base
from modelbudget.common import user_code
from modelbudget.common.errors import InputError
from modelbudget.common.paths import CONFIGS
from modelbudget.families.module import Module

MODELS = CONFIGS / "models"
CONFIG = "config.json"


def find(name: str) -> Base:
    """Return the model of a name. Raises InputError.

    `name`: of the catalogue (`palm-540b`); a config.json or the folder of one; or a function that
    returns a torch module (`package.file:function`), whose code this allows to run.
    """
    path = Path(name)
    if path.is_dir():
        path = path / CONFIG
        if not path.is_file():
            raise InputError([f"{path}: not found; allowed: a folder with a {CONFIG}"])
    if path.is_file():
        return models.configured_base(path.parent, path.name)
    if path.suffix == ".json" or "/" in name:
        raise InputError([f"{name}: no such file; allowed: a {CONFIG}, or a name of a model"])
    if ":" in name:
        return _own_module(name)
    return models.named(MODELS, name)


def _own_module(name: str) -> Base:
    user_code.allow([name])
    if why := user_code.refusal(name):
        raise InputError([why])
    return Base(name, name, Module, {"module": name}, {})
