"""What a name on the command line stands for: a published model, a config.json, or a function."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue import named_models
from modelbudget.catalogue.named_models import Base, as_spelled, without_owner
from modelbudget.catalogue.quantised_copies import copy_of
from modelbudget.common import user_code
from modelbudget.common.bounded_json import load_json
from modelbudget.common.errors import InputError
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS
from modelbudget.common.suggestions import (
    MAX_LISTED,
    nearest,
    offered,
    other_spelling,
    without_setting,
)
from modelbudget.common.validation_messages import show
from modelbudget.families import families
from modelbudget.huggingface.checkpoint_files import HEADER, INDEX
from modelbudget.sweeps.read import file_base

CATALOGUE = CONFIGS / "models"
_PAGE = re.compile(
    r"(?:https?://)?(?:huggingface|hf)\.co/([\w.-]+/[\w.-]+(?::[\w.-]+)?)"
    r"(?:/(?:tree|blob|resolve)/main(?:/config\.json)?)?/?"
)
"""The address of a model's page, or of its config.json, with its name."""
_FOLDER = re.compile(r"[^:]*/|(\./|\.\./|/)[^:]*(?<!\.json)|[^:/]+(/[^:/]+){2,}(?<!\.json)")
"""A path that is no name of a repository: it ends in a slash, begins with one, or has several."""
_WITH_CONFIG = "a config.json or a folder with one"
_OF_TRAINER = "a trainer's settings as options (docs/how-to/fine-tune.md)"
_OF_DEEPSPEED = {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"}
"""Keys of which each file of DeepSpeed has one, and no config.json."""
_VALUES = ("_component_", "type", "device", "enabled")
"""Keys whose value is that of the part which has them: torchtune's, and DeepSpeed's."""
_NO_MODELS = {
    "adapter_config.json": "an adapter; allowed: the model that it is of, with `adapter`",
    "model_index.json": "a pipeline of diffusers; allowed: a model that reads tokens",
}
"""Files of folders that have no config.json of a model."""
GGUF = ".gguf"
_LATEST = ":latest"
"""The tag of a model at ollama.com that says nothing."""
_NEAREST_MODEL = 0.8
"""Similarity from which a name is offered in place of a repository's."""
SEVERAL = "several models; allowed: "
_END_OF_WORD = re.compile(r"[-_:]")


def find(name: str) -> Base:
    """Return the model that `name` stands for. Raises InputError with what is allowed.

    `name` is a model, series or family of the catalogue; a config.json; a folder with one, or a
    safetensors file or index beside it; a .gguf file; or package.module:function, whose code is run
    only to measure it.
    """
    if name.endswith(GGUF):
        _must_be_file(Path(name), "an existing file")
        from modelbudget.files.gguf_model import gguf_base

        return gguf_base(Path(name))
    if page := _PAGE.fullmatch(name):
        name = page[1]
    if config := _config(name):
        return file_base(config.parent, config.name)
    if ":" not in name or not name.rpartition(":")[2].isidentifier():  # llama3.1:8b
        return _published(name)
    if "/" in name and (copy := copy_of(CATALOGUE, name)):  # Qwen/Qwen3-8B-GGUF:Q4_K_M
        return copy
    _must_be_module(name)
    user_code.allow([name])
    why = user_code.refusal(name)
    if why is None:
        return Base(name, name, families()["module"], {"module": name}, {})
    try:
        return _published(name.removesuffix(_LATEST))  # gemma3n:e4b
    except InputError as unknown:
        raise unknown if name.endswith(_LATEST) else InputError([why]) from None


def _published(name: str) -> Base:
    """Return the model, series or family of a name. Raises InputError with what is allowed."""
    try:
        base = named_models.find(CATALOGUE, name)
    except ValueError:
        if copy := copy_of(CATALOGUE, name):
            return copy
        names = named_models.names_of_models(CATALOGUE)
        series = named_models.of_series(CATALOGUE, name)  # smollm3 is smollm-3, of one model
        written = [known for known in names if known.casefold().startswith(f"{name.casefold()}-")]
        longer = written or [known for known in names if _begins(known, name)]
        begun: dict[str, str] = {}  # model → its first name that begins so
        for known, base in names.items():
            if base.name in series or known in longer:
                begun.setdefault(base.name, known)
        # mistral-7b is mistral-7b-v0.1: names of the same shape only where no model's begins so
        matching = [known for known in begun.values() if known in begun] or [*begun.values()]
        if len(matching) != 1:
            is_of_several = matching and not series
            allowed = SEVERAL + _listed(matching) if is_of_several else _allowed(name)
            raise InputError([f"MODEL = {show(name)}: {allowed}"]) from None
        return named_models.find(CATALOGUE, matching[0])
    of_series = [] if base.model else named_models.of_series(CATALOGUE, name)
    if len(of_series) != 1:
        return base
    names = named_models.names_of_models(CATALOGUE)
    size = re.compile(rf"{re.escape(name)}-[0-9.]+[bm]", re.IGNORECASE)
    sizes = [known for known, model in names.items()
             if model.name not in of_series and size.fullmatch(known)]  # fmt: skip
    if sizes:  # mpt-30b, which no page has
        raise InputError([f"MODEL = {show(name)}: {SEVERAL}{_listed([*of_series, *sizes])}"])
    return named_models.find(CATALOGUE, of_series[0])


def _begins(name: str, start: str) -> bool:
    """Whether words at the start of a name are another name, in any spelling."""
    words = (name[: end.start()] for end in _END_OF_WORD.finditer(name))
    return as_spelled(start) in map(as_spelled, words)


def _allowed(name: str) -> str:
    """Return what to write in place of an unknown name."""
    if series := models_of_series(name):
        return f"a series; allowed: {series}"
    known = [without_owner(base.name) for base in named_models.all_models(CATALOGUE)]
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        near = nearest(without_owner(name), known, 1, _NEAREST_MODEL)
        similar = f"; the nearest is {near[0]}" if near else ""
        config = f"https://huggingface.co/{name}/resolve/main/config.json"
        return (
            f"no such folder and no published model here{similar}; if huggingface.co has it: "
            f"curl -fLO {config} && modelbudget config.json"
        )
    paths = "or a config.json, a folder with one, or package.file:function"
    containing = [label for label in known if as_spelled(name) in as_spelled(label)]
    if containing and not nearest(name, known, 1):  # jamba
        return f"no published model; allowed: {_listed(containing)}; {paths}"
    return f"no published model{offered(name, known, '`modelbudget models`')}; {paths}"


def models_of_series(name: str) -> str:
    """Return the models of a series as text, with the rest counted; empty for another name."""
    return _listed(named_models.of_series(CATALOGUE, name))


def _listed(names: list[str]) -> str:
    """Return names as text, those beyond MAX_LISTED characters counted."""
    most = next((n for n in range(len(names), 1, -1) if len(", ".join(names[:n])) <= MAX_LISTED), 1)
    rest = f" and {len(names) - most} more in `modelbudget models`" if most < len(names) else ""
    return ", ".join(names[:most]) + rest


def _must_be_module(name: str) -> None:
    """Raise InputError with what to write if a function's file is named by its path."""
    path, _, function = name.rpartition(":")
    if path.endswith(".py") or "/" in path:
        folder, _, module = path.removesuffix(".py").removeprefix("./").rpartition("/")
        relative = not path.startswith(("/", "../"))
        written = f"{folder}/{module}".replace("/", ".").strip(".") if relative else module
        note = "" if relative else f", with PYTHONPATH={folder}"
        raise InputError([f"MODEL = {show(name)}: a path; write {written}:{function}{note}"])


def _config(name: str) -> Path | None:
    """Return the config.json that a path means, None if it is no path. Raises InputError."""
    path = Path(name)
    if os.path.isdir(name):  # False for a name that no file can have
        others = (path / other for other in ("config.json", *_NO_MODELS))
        path = next((other for other in others if other.is_file()), path / "config.json")
    elif name.endswith((HEADER, INDEX)):
        _must_be_file(path, "an existing file")
        path = path.with_name("config.json")
        if not path.is_file():
            raise InputError([f"{name}: needs the model's config.json: {path}: no such file"])
    elif path.suffix in (".yaml", ".yml") and os.path.isfile(path):
        of_sweep = f"a sweep with `modelbudget sweep {name}`, {_OF_TRAINER}"
        raise InputError([f"{name}: no model; allowed: {of_sweep}", *_settings_of_trainer(path)])
    elif _FOLDER.fullmatch(name):
        raise InputError([f"{name}: no such folder; allowed: {_WITH_CONFIG}"])
    elif path.suffix != ".json":
        return None
    if path.name in _NO_MODELS and path.is_file():
        raise InputError([f"{path}: {_NO_MODELS[path.name]}"])
    _must_be_file(path, _WITH_CONFIG)
    if _OF_DEEPSPEED & load_json(path, constants=True).keys():
        no_model = f"{path}: of DeepSpeed; allowed: a model, with {_OF_TRAINER}"
        raise InputError([no_model, *_settings_of_trainer(path)])
    return path


def _settings_of_trainer(path: Path) -> Iterator[str]:
    """Yield what to write in place of each key of a trainer's file, and which have no answer."""
    answers: dict[str, str] = {}
    try:
        keys = dict(_keys(load_json(path) if path.suffix == ".json" else load_yaml(path)))
    except InputError:  # which `modelbudget sweep` says
        return
    for key, value in keys.items():
        field = other_spelling(key, RunConfig.model_fields)
        if answer := without_setting(key) or (field and f"`{field}` here"):
            answers[key] = f"{path}: {key} = {show(value)}: {answer}"
    if "question" in keys or not answers:  # a sweep, or another file
        return
    yield from (line for line in answers.values() if ": nothing in" not in line)
    if unknown := [key for key in keys if key not in answers]:
        yield f"{path}: not known: {', '.join(unknown)}"


def _keys(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a file and of the mappings in it, which may have a value themselves."""
    for key, value in mapping.items():
        if isinstance(value, dict):
            of_part = {name: of for name, of in value.items() if name not in _VALUES}
            yield from _keys({key: next((value[n] for n in _VALUES if value.get(n)), None)})
            yield from _keys(of_part)
        elif value not in (None, False, ""):
            yield key, value


def _must_be_file(path: Path, allowed: str) -> None:
    if not os.path.isfile(path):
        raise InputError([f"{path}: no such file; allowed: {allowed}"])
