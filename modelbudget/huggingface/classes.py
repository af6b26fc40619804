"""Translation of the configs of Hugging Face's classes, from the files of `configs/huggingface/`.

A file of `model_types/` serves both directions: from a `config.json` to the fields of a family, and
back; most say only how they differ from another (`inherited_files.py`). `keys.yaml` holds the
common meaning of keys in all classes; `configs/file_keys.yaml` says what each section is. To add a
class, add a file; a test compares its defaults with those of the class in transformers.
"""

import re
from collections.abc import Iterator
from functools import cache, cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

from modelbudget.architecture.base import Architecture
from modelbudget.common.errors import InputError
from modelbudget.common.expressions import Expression
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, as_strict, read_strict, shipped
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show
from modelbudget.huggingface.inherited_files import class_files, without_inherited

FOLDER = CONFIGS / "huggingface"
CLASSES = "configs/huggingface/model_types"
SECTIONS = "modelbudget/huggingface/classes.py"
NO_ROPE, NO_ROPE_INTERVAL = "no_rope_layers", "no_rope_layer_interval"
"""Keys that say which layers are without RoPE."""
LAYER = "layer"
"""The number of a layer, in expressions of one."""
OPTIONAL = {"head_dim"}
"""Keys that an expression may use if the class does not have them; they are then null."""

Fields = dict[str, bool | int | str]


def _expression(text: str) -> str:
    Expression(text)
    return text


Formula = Annotated[str, AfterValidator(_expression)]


class Case(Strict):
    """One value of a key, and the fields that it sets."""

    value: bool | int | float | str | list | None
    fields: Fields = Field(default={})


Topic = Literal["all", "bytes", "training", "inference", "serving"]
"""The quantities that a note is about."""

Meaning = str | list[Case]
"""The field that has the value of a key, or the values that the key may have."""


class Meanings(Strict):
    """Sections that both kinds of files have."""

    sizes: dict[str, str] = Field({})
    switches: dict[str, list[str]] = Field({})
    choices: dict[str, list[Case]] = Field({})
    supported: dict[str, list] = Field({})
    ignored: list[re.Pattern] = Field([])

    @cached_property
    def meanings(self) -> dict[str, Meaning]:
        """Meaning by key."""
        switches = {
            key: [Case(value=on, fields=dict.fromkeys(fields, on)) for on in (False, True)]
            for key, fields in self.switches.items()
        }
        supported = {key: [Case(value=v) for v in values] for key, values in self.supported.items()}
        return self.sizes | switches | self.choices | supported

    def fields_set(self) -> Iterator[tuple[str, str]]:
        """Yield each field that a section names, with its place."""
        for key, meaning in self.meanings.items():
            if isinstance(meaning, str):
                yield key, meaning
            else:
                fields = dict.fromkeys(field for case in meaning for field in case.fields)
                yield from ((key, field) for field in fields)


class NotUsed(Strict):
    """Keys that are read and not used, and the line that a user reads about them."""

    keys: re.Pattern
    unless: list[bool | int | float | str | None]
    unless_of_class: bool = False
    about: Topic
    settles: str | None = None
    note: str


class KnownWhere(Strict):
    """Keys of files whose code makes the modules of another model_type."""

    keys: dict[str, bool | int | str]
    known_as: str
    classes: list[str] = Field([])


class SharedKeys(Meanings):
    """`keys.yaml`: what keys mean in every class, unless its own file overrides that."""

    same: dict[str, str]
    layer_types: dict[str, str]
    known_as: dict[str, str]
    unread_types: dict[str, str]
    without_model_type: dict[str, str]
    known_where: list[KnownWhere]
    text_parts: list[str]
    tied_by: dict[str, Literal["text", "either", "nothing"]]
    tied_if_absent: list[str]
    run: dict[str, list[Case]]
    not_used: list[NotUsed]


class Misdescribed(Strict):
    """Published config.json files that do not describe the model that was trained."""

    model: str
    configs: list[dict[str, bool | int | str]]
    note: str
    source: str

    @property
    def line(self) -> str:
        """The line that a reader of such a file gets."""
        return f"{self.model}: {self.note} ({self.source})"

    def matches(self, config: dict[str, Any]) -> bool:
        """Whether a config, with its defaults, is such a file."""
        return any(keys.items() <= config.items() for keys in self.configs)


class _AllMisdescribed(Strict):
    misdescribed: list[Misdescribed]


misdescribed = shipped(FOLDER / "misdescribed.yaml", _AllMisdescribed, rest=SECTIONS)


class LeftOut(Strict):
    """Parameters of our model that the class does not have (if negative, the reverse)."""

    parameters: Formula
    reason: str


class KnownDifference(NamedTuple):
    """Parameters that a class has in addition to ours (if negative, fewer), and why."""

    parameters: int
    reason: str

    @property
    def text(self) -> str:
        """The number and the reason in one line."""
        return f"{self.parameters:+,}: {self.reason}"


def _is_default(value: Any) -> Any:
    words = isinstance(value, list) and all(isinstance(word, str) for word in value)
    if not words and not isinstance(value, bool | int | float | str | None):
        raise ValueError("must be a number, text, true, false, null or a list of texts")
    return value


Default = Annotated[Any, AfterValidator(_is_default)]
"""Default of a key: one validator, since a union would report an error for each of its types."""


class Translation(Meanings):
    """A file of `model_types/`: classes of transformers that share a `model_type`."""

    model_type: str
    like: str | None = None
    family: str
    classes: dict[str, Fields] = Field(min_length=1)
    in_transformers: bool = True
    defaults: dict[str, Default]
    fixed: Fields = Field({})
    mixers: str = ""
    layer_types: dict[str, str] = Field({})
    layer_mlps: dict[str, str] = Field({})
    attention_where: Formula = ""
    attention_at: dict[str, str] = Field({})
    attention_counts_from: int = 0
    experts_where: Formula = ""
    dense_layers: int = 0
    full_layers: dict[str, str] = Field({})
    rope_layers: list[str] = Field([])
    rope_of_windows: bool = False
    token_operations: int = 0
    float32_in: list[Literal["float16", "bfloat16"]] = Field([])
    computed: dict[str, Formula] = Field({})
    inverse: dict[str, Formula] = Field({})
    also: dict[str, Any] = Field({})
    requires: list[Formula] = Field([])
    aliases: dict[str, str] = Field({})
    left_out: LeftOut | None = None

    def meaning(self, key: str) -> Meaning | None:
        """Return what a key means in these classes; None for a key that only expressions use."""
        shared = shared_keys()
        return self.meanings.get(key, shared.meanings.get(shared.same.get(key, key)))

    def fields_set(self) -> Iterator[tuple[str, str]]:
        yield from super().fields_set()
        yield from (("fixed", field) for field in self.fixed)
        for name, fields in self.classes.items():
            yield from ((f"classes.{name}", field) for field in fields)
        yield from (("computed", field) for field in self.computed)
        yield from _names("inverse", self.inverse)
        if self.left_out:
            yield from _names("left_out", {"parameters": self.left_out.parameters})

    def keys_read(self) -> Iterator[tuple[str, str]]:
        """Yield each key that a section names, with its place."""
        for section in ("sizes", "switches", "choices", "supported", "inverse"):
            yield from ((f"{section}.{key}", key) for key in getattr(self, section))
        yield from ((f"aliases.{spelling}", key) for spelling, key in self.aliases.items())
        yield from ((f"full_layers.{key}", meaning) for key, meaning in self.full_layers.items())
        yield from _names("computed", self.computed)
        yield from _names("requires", dict(enumerate(self.requires)))
        for section in ("attention_where", "experts_where"):
            if text := getattr(self, section):
                names = _names(section, {LAYER: text})
                yield from ((place, key) for place, key in names if key != LAYER)
        if self.rope_layers:
            yield from (("rope_layers", key) for key in (NO_ROPE, NO_ROPE_INTERVAL))
        if "window" in self.sizes.values():
            return
        if "sliding_attention" in self.mixers.split():
            yield "mixers", "sliding_window"
        elif self.mixers and "sliding_window" in self.defaults:
            yield "layer_types", "sliding_window"


@cache
def shared_keys() -> SharedKeys:
    """Read `keys.yaml`. Raises InputError with every mistake."""
    path = FOLDER / "keys.yaml"
    keys = read_strict(path, SharedKeys, rest=SECTIONS)
    known = keys.meanings | keys.run
    mistakes = [
        f"{path}: same.{key} = {show(spelling)}: unknown key{offered(spelling, known, str(path))}"
        for key, spelling in keys.same.items()
        if spelling not in known
    ]
    if mistakes:
        raise InputError(mistakes)
    return keys


@cache
def translations() -> dict[str, Translation]:
    """Return every class with a formula, by its name in transformers.

    Raises InputError with the mistakes of all files.
    """
    by_class: dict[str, Translation] = {}
    wrong: dict[str, list[str]] = {}
    shared_keys()
    folder = FOLDER / "model_types"
    files, mistakes = class_files(folder)
    for name, content in files.items():
        path = folder / f"{name}.yaml"
        try:
            translation = as_strict(
                {"model_type": name} | content, path, Translation, rest=SECTIONS
            )
        except InputError as error:
            wrong[name] = [line.removeprefix(f"{path}: ") for line in error.mistakes]
            continue
        wrong[name] = list(_unknown_keys(translation))
        wrong[name] += [
            f"classes.{class_name}: is in another file too; allowed: once"
            for class_name in translation.classes
            if class_name in by_class
        ]
        by_class |= dict.fromkeys(translation.classes, translation)
    like = {name: content.get("like") for name, content in files.items()}
    mistakes += [f"{folder / name}.yaml: {line}" for name, line in without_inherited(wrong, like)]
    if mistakes:
        raise InputError(mistakes)
    return by_class


def known_difference(class_name: str | None, a: Architecture) -> KnownDifference | None:
    """Return how a class is known to differ from its architecture; None if it does not."""
    left_out = translations()[class_name].left_out if class_name else None
    if left_out is None:
        return None
    parameters = int(Expression(left_out.parameters)(a.model_dump()))
    return KnownDifference(-parameters, left_out.reason) if parameters else None


def _unknown_keys(translation: Translation) -> Iterator[str]:
    """Yield a line for each key without a default, and for each default that nothing reads."""
    defaults = translation.defaults
    read = list(translation.keys_read())
    for place, key in read:
        if key not in defaults.keys() | OPTIONAL:
            yield f"{place}: {show(key)} has no default{offered(key, defaults, 'defaults')}"
    used = {key for _, key in read} | ({"layer_types"} if translation.mixers else set())
    used |= {"mlp_layer_types", *translation.attention_at, *shared_keys().run}
    for key in defaults:
        if key not in used and translation.meaning(key) is None:
            known = shared_keys().meanings
            yield f"defaults.{key}: unknown key{offered(key, known, str(FOLDER / 'keys.yaml'))}"


def _names(section: str, expressions: dict[Any, str]) -> Iterator[tuple[str, str]]:
    for place, text in expressions.items():
        yield from ((f"{section}.{place}", name) for name in sorted(Expression(text).names))
