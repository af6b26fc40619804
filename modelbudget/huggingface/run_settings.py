"""Run settings in a config.json, and notes on keys that are not used."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from modelbudget.common.validation_messages import show
from modelbudget.huggingface.classes import (
    NotUsed,
    Topic,
    Translation,
    misdescribed,
    shared_keys,
    translations,
)

OF_M_ROPE = 4
"""Rows of a position of M-RoPE, which counts places in videos (rotary_embedding/mrope.py)."""
MOST_TIMES_LONGER = 2**20
"""What no text is longer by: a larger factor is a mistake."""


class Note(NamedTuple):
    """A line for the reader of results.

    `about` names the quantities concerned. `settles` is a field of the run: a sweep that sets it
    needs no line.
    """

    text: str
    about: Topic = "all"
    settles: str | None = None

    @property
    def is_of_our_modules(self) -> bool:
        """Whether it is about a key that the class of the file uses, and our modules do not."""
        return self.about in ("training", "inference") and self.settles is None


def run_settings(
    config: dict[str, Any], class_name: str | None = None
) -> tuple[dict[str, Any], list[Note]]:
    """Return the fields of the run that a config, or its class, sets, each with a note."""
    keys, fields, notes = shared_keys(), {}, []
    of_class = translations()[class_name].defaults if class_name else {}
    values = {key: value for key, value in of_class.items() if key in keys.run} | dict(
        _all_keys(config)
    )
    for key, value in values.items():
        name = keys.same.get(key, key)
        if name != key and values.get(name) is not None:
            continue  # the class reads that, wherever it stands
        for case in keys.run.get(name, ()):
            if case.value == value:
                fields |= case.fields
                (field,) = case.fields
                text = f"{key} = {show(value)}: used as {field}, since nothing else sets it"
                about = "serving" if field == "cached_state_dtype" else "bytes"
                notes.append(Note(text, about, field))
    return fields, notes


def rope_rows(config: Mapping[str, Any], of_class: Translation) -> int:
    """Return the rows of all tables; of a scaling that no class could read, those without one.

    Layers of one kind share a table; that of linear scaling is as many times longer as its factor
    (rotary_embedding/linear_scaling_rope.py).
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    rope = rope if isinstance(rope, dict) else {}
    of_full = rope.get("full_attention")
    rope = of_full if isinstance(of_full, dict) else rope
    rows = OF_M_ROPE if "mrope_section" in rope else 1
    factor = rope.get("factor")
    is_linear = rope.get("rope_type", rope.get("type")) == "linear"
    if is_linear and isinstance(factor, int | float) and 1 <= factor <= MOST_TIMES_LONGER:
        rows *= round(factor)
    return rows + of_class.rope_of_windows


def not_used(class_name: str | None, config: dict[str, Any]) -> list[Note]:
    """Return a note for each group of keys that change memory or compute and are not used.

    A class without a formula reads them itself, but for those of which the run decides (dropout).
    """
    of_class: set[str] = set()
    if class_name:
        classes = translations()[class_name]
        of_class = classes.defaults.keys() | {
            key
            for key, _ in _all_keys(config)
            if any(line.fullmatch(key) for line in classes.ignored)
        }
    lines = [
        (line, _text_of_keys(line, config, of_class if line.unless_of_class else ()))
        for line in shared_keys().not_used
        if class_name or line.settles
    ]
    return [
        Note(f"{keys_set}: not used: {line.note}", line.about, line.settles)
        for line, keys_set in lines
        if keys_set
    ]


def misdescribes(class_name: str | None, config: dict[str, Any]) -> list[Note]:
    """Return a note if a published file is known not to describe the model that was trained.

    `class_name` is its class if there is a formula.
    """
    values = (translations()[class_name].defaults if class_name else {}) | config
    differences = misdescribed().misdescribed
    return [Note(difference.line) for difference in differences if difference.matches(values)]


def _text_of_keys(line: NotUsed, config: dict[str, Any], left_out: Collection[str]) -> str:
    return ", ".join(
        f"{key} = {show(value)}"
        for key, value in _all_keys(config)
        if line.keys.fullmatch(key) and value not in line.unless and key not in left_out
    )


def _all_keys(config: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the keys of a config, of the text part of a larger one, and of attention's part."""
    parts = (config, *(config.get(name) for name in (*shared_keys().text_parts, "attn_config")))
    return [item for part in parts if isinstance(part, dict) for item in part.items()]
