"""Reading of a config.json as downloaded from a model page: its family and fields."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from modelbudget.common.bounded_json import each_key_once, load_json
from modelbudget.common.errors import InputError
from modelbudget.common.validation_messages import show
from modelbudget.huggingface import bounded_check, nested_text_config, other_parts, quantization
from modelbudget.huggingface.class_code import class_of, folder_of_package, keys_in_code
from modelbudget.huggingface.classes import shared_keys, translations
from modelbudget.huggingface.keys_of_class import impossible_sizes, without_code
from modelbudget.huggingface.read_config import (
    fields_of,
    known_class,
    sizes_of_class,
    unknown_keys,
    unrelated_keys,
)
from modelbudget.huggingface.run_settings import (
    Note,
    misdescribes,
    not_used,
    rope_rows,
    run_settings,
)
from modelbudget.huggingface.value_meanings import NoFormulaError, NoSizeError

OF_MODELOPT = "hf_quant_config.json"
FLOAT, NOT_FINITE = "__float__", ("Infinity", "-Infinity", "NaN")


class Configured(NamedTuple):
    """Family and fields of a file; `class_name`: its `transformers` class if there is a formula.

    `run` has the fields of the run that the file gives, and `notes` what a reader must know.
    `config` is what the class is built from: the keys of the file, or of the language model in it,
    as JSON. None without a formula, since then they are in the fields. `left_out`: parameters of
    the file's parts that are no language model; 0 where they are not known.
    """

    family: str
    fields: dict[str, Any]
    class_name: str | None
    run: dict[str, Any]
    notes: list[Note]
    config: str | None = None
    left_out: int = 0


def read(path: Path) -> Configured:
    """Read a config.json, and how ModelOpt quantised the weights if its file lies next to it.

    Raises InputError with everything that is wrong or not supported.
    """
    config, of_modelopt = _load(path), path.parent / OF_MODELOPT
    if "quantization_config" not in config and of_modelopt.is_file():
        config["quantization_config"] = quantization.of_modelopt(_json(of_modelopt))
    if of_mlx := quantization.of_mlx(config):
        config.setdefault("quantization_config", of_mlx)
        del config[quantization.OF_MLX_ALONE]
    return read_keys(path, config)


def read_keys(path: Path, config: dict[str, Any]) -> Configured:
    """Read the keys of a config that a file holds. Raises InputError that names the file."""
    try:
        if class_name := known_class(config):
            return _with_formula(class_name, config)
        if nested := nested_text_config.of(config):
            return _of_text(nested, config)
        return _without_formula(None, config)
    except ValueError as error:
        raise InputError.at(path, error) from None
    except RecursionError:
        raise InputError([f"{path}: nested too deep"]) from None


def _of_text(text: nested_text_config.TextPart, config: dict[str, Any]) -> Configured:
    """Translate the config of a language model, and count the other parts."""
    read = _with_formula(text.class_name, text.config)
    d_model = read.fields.get("d_model")
    left_out = other_parts.parameters(config, text.left_out, d_model) if d_model else None
    return read._replace(notes=[text.note, *read.notes], left_out=left_out or 0)


def as_class(class_name: str, config: dict[str, Any], mistakes: list[str]) -> Configured:
    """Read a config that no formula covers as its class alone, which must be one that can be built.

    `mistakes` say why there is no formula; raises ValueError with them if it cannot.
    """
    return _without_formula(class_name, config, ValueError("\n".join(mistakes)))


def _with_formula(class_name: str, config: dict[str, Any]) -> Configured:
    """Translate the config of a class that has a formula; with other values it is only measured."""
    translation = translations()[class_name]
    run, notes = run_settings(config, class_name)
    notes += misdescribes(class_name, config)
    unknown = unknown_keys(class_name, config) if translation.in_transformers else []
    read = keys_in_code(class_name, unknown)  # all of them if it is not installed
    unread = [key for key in unknown if key not in read]
    unrelated = {*unread} & {*unrelated_keys(class_name, config)}
    of_class = json.dumps(config) if translation.in_transformers else None
    useless = ", ".join(
        f"{key} = {show(config[key])}"
        for key in unread
        if key in unrelated and config[key] not in (None, [], {})
    )
    if useless:
        notes.append(Note(f"{useless}: not read by {class_name}"))
    config = {key: value for key, value in config.items() if key not in unrelated}
    try:
        fields = fields_of(class_name, config)
    except NoSizeError:
        raise
    except ValueError as error:
        is_misspelled = len(unrelated) < len(unread)
        if is_misspelled or not translation.in_transformers:
            raise
        return _without_formula(class_name, config, error)
    notes += not_used(class_name, config)
    if (rows := rope_rows(config, translation)) > 1:
        run["rope_rows"] = rows
    weights, of_weights = quantization.weight_format(config, fields)
    known = class_name if translation.in_transformers else None
    notes += of_weights
    if sizes := sizes_of_class(class_name, config):
        listed = ", ".join(f"{key} = {value}" for key, value in sizes.items())
        number = "1 size is" if len(sizes) == 1 else f"{len(sizes)} sizes are"
        notes.append(
            Note(f"{number} not in the file, so that {class_name}'s defaults are used: {listed}")
        )
    return Configured(translation.family, fields, known, run | weights, notes, of_class)


def _without_formula(
    class_name: str | None, config: dict[str, Any], why: ValueError | None = None
) -> Configured:
    """Let transformers read a config for its class, without a formula because of `why`.

    Raises `why` if it is about values that a class may not have, and this one cannot be built.
    """
    run, notes = run_settings(config)
    weights, of_weights = quantization.weight_format(config, {})
    config = config | ({"architectures": [class_name]} if class_name else {})
    fields = _fields_of_class(config, why)
    notes += [*misdescribes(None, config), *not_used(None, config)]
    notes += _tied_nevertheless(config, fields)
    lines = str(why).splitlines() if why else ()
    notes += [Note(f"{line}; measured without a formula: {class_name} is traced") for line in lines]
    return Configured("hugging-face", fields, None, run | weights, [*notes, *of_weights])


def _fields_of_class(config: dict[str, Any], why: ValueError | None) -> dict[str, Any]:
    """Return what transformers reads, whose import takes seconds: all else is checked before."""
    has_no_formula_alone = why is None or isinstance(why, NoFormulaError)
    try:
        if folder_of_package():
            class_of(config)
        if mistakes := [*impossible_sizes(without_code(config))]:
            raise ValueError("\n".join(mistakes))
        question = "fields_of" if has_no_formula_alone else "fields_of_built"
        return bounded_check.ask(question, config)
    except ValueError:
        if has_no_formula_alone:
            raise
        raise why from None


def _tied_nevertheless(config: dict[str, Any], fields: dict[str, Any]) -> list[Note]:
    """Return a note if the class ties a head that the file has for itself (UMT5)."""
    key, class_name = "tie_word_embeddings", fields["kind"]
    try:
        is_tied = config.get(key) is False and bounded_check.ask("ties_head", without_code(config))
    except ValueError:  # what the class rejects is reported where it is built
        return []
    n_more = fields.get("n_vocab", 0) * fields.get("d_model", 0)
    if not is_tied or not n_more:
        return []
    line = f"{key} = false: {class_name} ties the head nevertheless"
    return [Note(f"{line}; with its own it has {n_more:,} more parameters")]


def _json(path: Path) -> dict[str, Any]:
    return load_json(path, read_object=_value, constants=True)


def _load(path: Path) -> dict[str, Any]:
    config = _json(path)
    if "model_type" not in config and "_class_name" in config:
        named = f"{path}: _class_name = {show(config['_class_name'])}"
        raise InputError([f"{named}: of diffusers; allowed: a model that reads tokens"])
    for key, model_type in shared_keys().without_model_type.items():
        if key in config:
            config.setdefault("model_type", model_type)
    if not isinstance(config.get("model_type"), str):
        named = show(config["model_type"]) if "model_type" in config else "missing"
        raise InputError([f"{path}: model_type: {named}; allowed: a name such as llama or gpt2"])
    classes = config.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise InputError([f"{path}: architectures = {show(classes)}: must be a list of classes"])
    return nested_text_config.with_known_names(config)


def _value(pairs: list[tuple[str, Any]]) -> Any:
    """Return an object, or the number that transformers 5 writes as {"__float__": "Infinity"}."""
    if len(pairs) == 1 and pairs[0][0] == FLOAT and pairs[0][1] in NOT_FINITE:
        return float(pairs[0][1])
    content = each_key_once(pairs)
    for key, value in pairs:
        values = value if isinstance(value, list) else [value]
        if any(isinstance(item, float) and math.isnan(item) for item in values):
            raise ValueError(f"{key} = NaN: must be a number")
    return content
