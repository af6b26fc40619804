"""The language model of a larger one, which reads images or sound too."""

import re
from typing import Any, NamedTuple

from modelbudget.huggingface.classes import shared_keys, translations
from modelbudget.huggingface.read_config import known_class
from modelbudget.huggingface.run_settings import Note
from modelbudget.huggingface.value_meanings import look_up

DTYPES = ("torch_dtype", "dtype")
TIED = "tie_word_embeddings"
OF_WHOLE = (TIED, *DTYPES, "quantization_config")
"""Keys of a whole model that hold for its language model."""
OF_PART = re.compile(r"\w+_config")
"""A key with the config of a part; `transformers.js_config` has settings of another program."""
ROPE = ("rope_scaling", "rope_parameters")
MROPE = "mrope"
"""The type of RoPE with places in images, which is the default one for text (Qwen2-VL)."""


class TextPart(NamedTuple):
    """The config of a language model, its class, and what a reader must know.

    `left_out`: keys with the configs of other parts.
    """

    config: dict[str, Any]
    class_name: str
    note: Note
    left_out: list[str]


def of(config: dict[str, Any]) -> TextPart | None:
    """Return the language model in a config if there is a formula for it, else None.

    Its keys are those of a nested config, or stand next to the config of another part.
    """
    nested = [key for key in shared_keys().text_parts if isinstance(config.get(key), dict)]
    other_parts = [
        key
        for key, value in config.items()
        if isinstance(value, dict) and OF_PART.fullmatch(key) and key not in (*nested, *OF_WHOLE)
    ]
    of_text = {"model_type": f"{config['model_type']}_text"}
    if nested:
        text_part = config[nested[0]]
        whole = {key: config[key] for key in OF_WHOLE if key in config}
        tied_by = shared_keys().tied_by.get(config["model_type"])
        if tied_by == "text" or (tied_by == "either" and not whole.get(TIED)):
            whole.pop(TIED, None)
        elif tied_by == "nothing":
            whole[TIED] = False
        replaced = {*DTYPES} if {*DTYPES} & whole.keys() else {}
        of_text |= {key: value for key, value in text_part.items() if key not in replaced}
        of_text |= whole
    elif other_parts:
        of_text = {key: value for key, value in config.items() if key not in other_parts} | of_text
    else:
        return None
    of_text |= {key: _of_text(of_text[key]) for key in ROPE if key in of_text}
    text = with_known_names(of_text | {"architectures": []})
    class_name = known_class(text)
    renamed = text["model_type"] != of_text["model_type"]
    if (
        class_name is None
        or translations()[class_name].family == "encoder"
        or (renamed and _gaps(class_name, text))
    ):
        return None
    whole_name = next(iter(config["architectures"]), config["model_type"])
    left_out = f"; left out: {', '.join(other_parts)} and what connects them" if other_parts else ""
    is_tied = text.get(TIED, translations()[class_name].defaults.get(TIED))
    if TIED not in config and not is_tied and config["model_type"] in shared_keys().tied_if_absent:
        left_out += f"; it has a head of its own, which the class ties unless {TIED} is false"
    return TextPart(
        text,
        class_name,
        Note(f"{whole_name}: only its language model, {class_name}, is read{left_out}"),
        other_parts,
    )


def _of_text(rope: Any) -> Any:
    """Return the parameters of RoPE with the type that those of text have."""
    if not isinstance(rope, dict):
        return rope
    return {key: "default" if value == MROPE else value for key, value in rope.items()}


def _gaps(class_name: str, text: dict[str, Any]) -> set[str]:
    """Return the sizes that a config leaves out: another model_type has other defaults."""
    translation = translations()[class_name]
    sizes = {
        key
        for key, default in translation.defaults.items()
        if isinstance(translation.meaning(key), str) and default not in (None, "auto")
    }
    return sizes - {translation.aliases.get(key, key) for key in text}


def with_known_names(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with the names that transformers has for its model_type and classes.

    A file that names another class than those of the other model_type keeps its own.
    """
    known_as = shared_keys().known_as
    named = config["model_type"]
    new_type = known_as.get(named, named) if isinstance(named, str) else ""
    classes = [known_as.get(name, name) for name in config.get("architectures") or []]
    for case in shared_keys().known_where:
        if all(look_up(config, key) == value for key, value in case.keys.items()):
            new_type = case.known_as
            classes = [name for name in classes if name not in case.classes]
    renamed = {"model_type": new_type, "architectures": classes}
    is_known = not classes or known_class(config | renamed)
    return config | renamed | ({} if is_known or not new_type else {"model_type": named})
