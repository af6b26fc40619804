"""Configs from which the `transformers` classes of points are built. Imports no torch.

The class of a config.json is built from the keys of that file as they are written, and has its own
defaults for all others: a key that our translation loses is not lost for the class. What a sweep
changes, and all of a model without a file, are keys made from our fields.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.named_models import Base
from modelbudget.common.validation_messages import show
from modelbudget.huggingface.classes import translations
from modelbudget.huggingface.keys_of_class import changed, stretch, without_code
from modelbudget.huggingface.read_config import fields_of, unknown_keys
from modelbudget.huggingface.write_config import config_of
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.point import Point

if TYPE_CHECKING:
    import polars as pl

FILE, FIELDS = "config.json", "our fields"
"""Whose keys a class is built from."""
FREE = {
    "n_ctx", "n_vocab", "vocab_multiple", "d_ff", "d_shared", "n_dense_layer", "mixers", "window",
    "global_every",
}  # fmt: skip
"""Fields that may differ where parameters do not: the context length, what is said of MLPs that no
layer has, equivalent spellings, and patterns that a class has by itself.
"""


class ClassOfPoint(NamedTuple):
    """The class of a point, and the keys of its config, or why it cannot be that architecture.

    `built_from` is `FILE` or `FIELDS`.
    """

    point: str
    class_name: str
    run: RunConfig
    built_from: str
    config: dict[str, Any] | None
    refusal: str | None = None

    def keys_of_config(self) -> dict[str, Any]:
        """Return the keys of its config. Raises ValueError with the refusal."""
        if self.config is None:
            raise ValueError(self.refusal)
        return self.config


def classes_of(points: pl.DataFrame) -> list[ClassOfPoint]:
    from modelbudget.sweeps.points_table import rows  # imports Polars, which a prediction does not

    of_points = rows(points.drop_nulls("transformers"))
    return [_of_point(of, of.transformers) for of in of_points if of.transformers]


def _of_point(of: Point, class_name: str) -> ClassOfPoint:
    config, refusal = None, None
    try:
        config = class_config(class_name, of.architecture, of.config)
    except ValueError as error:
        refusal = str(error)
    built_from = FILE if of.config else FIELDS
    return ClassOfPoint(of.point, class_name, of.run, built_from, config, refusal)


def class_config(class_name: str, a: Architecture, file: str | None = None) -> dict[str, Any]:
    """Return the config with which the class is the architecture `a`.

    `file` is the config.json from which `a` was read, as JSON: its keys are kept as they are, but
    for those of the fields that were changed since. Raises ValueError if the class cannot have the
    parameters of `a`, or its other fields but `FREE` ones.
    """
    config = config_of(class_name, a) if file is None else _of_file(class_name, a, file)
    built = _architecture(class_name, type(a), config)
    wanted = _with_rope_of_heads(a)
    fields = _with_rope_of_heads(built)
    differ = {n: value for n, value in fields.items() if value != wanted[n]}
    if _owned(built) == _owned(a) and differ.keys() <= FREE:
        return config
    listed = ", ".join(f"{n} = {show(wanted[n])} (there: {show(v)})" for n, v in differ.items())
    raise ValueError(f"{class_name} cannot be this architecture: {listed}")


def _with_rope_of_heads(a: Architecture) -> dict[str, Any]:
    """Return the fields of an architecture, with the channels that RoPE rotates where it is all."""
    fields = a.model_dump()
    return fields | ({} if fields.get("d_rotary", 1) else {"d_rotary": fields["d_head"]})


def _of_file(class_name: str, a: Architecture, text: str) -> dict[str, Any]:
    file, of_file = _read(class_name, type(a), text)
    if of_file == a:
        return dict(file)
    config = changed(
        file,
        config_of(class_name, of_file),
        config_of(class_name, a),
        translations()[class_name].aliases,
    )
    # Padding tokens may lie outside of a smaller vocabulary, and are then rejected.
    config["pad_token_id"] = 0
    stretch(config, getattr(of_file, "n_layer", None), getattr(a, "n_layer", 0))
    return config


@cache
def _read(
    class_name: str, family: type[Architecture], text: str
) -> tuple[dict[str, Any], Architecture]:
    """Return the keys of a file that name no code, and the architecture that they are to us."""
    file = {k: v for k, v in without_code(json.loads(text)).items() if k != "model_type"}
    return file, _architecture(class_name, family, file)


def _architecture(
    class_name: str, family: type[Architecture], config: dict[str, Any]
) -> Architecture:
    """Return the architecture of a config; keys that its class does not read are ignored."""
    unread = unknown_keys(class_name, config)
    keys_read = {key: value for key, value in config.items() if key not in unread}
    model_type = translations()[class_name].model_type
    fields = fields_of(class_name, {"model_type": model_type} | keys_read)
    return named_architecture(Base(class_name, class_name, family, fields, {}))


def _owned(a: Architecture) -> dict[str, int]:
    return {name: term.total for name, term in a.parameters(a).items() if term.total}
