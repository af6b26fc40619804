"""Exact sizes of configurations, each with its witness, for tests of anybody's function.

`configs/vectors.json` holds them; `scripts/dev/write_vectors.py` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from modelbudget.api.arguments import EACH_TEXT, checked
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import bytes_of
from modelbudget.common.errors import InputError
from modelbudget.common.paths import CONFIGS
from modelbudget.common.suggestions import offered
from modelbudget.common.validation_messages import show

if TYPE_CHECKING:
    from modelbudget.api.model import Model

PATH = CONFIGS / "vectors.json"
VERSION = 1
"""Version of the file's format; a later one may change what a key means."""


class Vector(NamedTuple):
    """One size of one configuration.

    `config` is that of a config.json; None for a model without one. `implementation` says whose
    memory it is, `run` has the settings of the run in our words (docs/fields.md), and `witness`
    says how the value was seen: each with `how` (class, trace, module, recorded, published) and
    `source`. `value` is in `unit`.
    """

    name: str
    model: str | None
    config: Mapping[str, Any] | None
    quantity: str
    implementation: str
    run: Mapping[str, Any]
    value: int
    unit: str
    witness: tuple[Mapping[str, str], ...]

    def __str__(self) -> str:
        return self.name


@checked(quantities=EACH_TEXT)
def vectors(*quantities: str) -> list[Vector]:
    """Return the vectors of some quantities, or all. Raises InputError for an unknown quantity."""
    all_vectors = _all()
    known = dict.fromkeys(vector.quantity for vector in all_vectors)
    for name in quantities:
        if name not in known:
            near = offered(name, known, "configs/vectors.json")
            raise InputError([f"{show(name)}: no vectors{near}"])
    return [vector for vector in all_vectors if not quantities or vector.quantity in quantities]


@cache
def _all() -> list[Vector]:
    content = json.loads(PATH.read_text(encoding="utf-8"))
    configs = content["configs"]
    return [
        Vector(**line | {"config": configs.get(line["config"]), "witness": tuple(line["witness"])})
        for line in content["vectors"]
    ]


def predicted(vector: Vector) -> int | None:
    """Return what modelbudget's formulas say of a vector; None where no formula covers it.

    The vectors are not made by these: `pytest --vectors modelbudget.api.vectors:predicted` holds
    both together.
    """
    from modelbudget.api.class_answers import as_class, by_formula
    from modelbudget.catalogue.implementations import OURS

    model = _model(vector)
    if vector.implementation == "vllm":
        return _of_pages(model, vector)
    if vector.implementation == "modelbudget":
        return model.predict(vector.quantity, dict(vector.run)).total
    of_class = as_class(model, dict(vector.run))
    if of_class.run.weights == "dtype":
        breakdown = by_formula(of_class, vector.quantity)
    elif of_class.class_name == "GPT2LMHeadModel" and of_class.run.weights.startswith("bnb-4bit"):
        return None  # one packed matrix, of which our modules have three (docs/limits.md)
    else:
        breakdown = model.predict(vector.quantity, {"implementation": OURS})
    if breakdown is None:
        return None
    known = of_class.known_difference
    fewer = min(known.parameters if known else 0, 0)  # more are in the total
    each = {"parameters": 1, "parameter_bytes": bytes_of(of_class.run.dtype)}
    return breakdown.total + fewer * each.get(vector.quantity, 0)


def _model(vector: Vector) -> Model:
    from modelbudget.api.model import model

    if vector.model is not None:
        return model(vector.model)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(vector.config), encoding="utf-8")
        return model(str(path))


def _of_pages(model: Model, vector: Vector) -> int:
    """Return what vLLM allocates of its cache: bytes of a block, blocks of all, or their tokens."""
    from modelbudget.predict.cache_bytes import layer_caches
    from modelbudget.serving.cache_layouts import pages_of

    fields = RunConfig.model_fields
    settings = {name: value for name, value in vector.run.items() if name in fields}
    a, run = model.with_run(settings)
    pages = pages_of(layer_caches(a, run), run)
    if vector.quantity == "block_bytes":
        return pages.block_bytes
    blocks = vector.run["cache_memory"] // pages.block_bytes
    if vector.quantity == "blocks":
        return blocks
    return int(blocks / pages.blocks_of(run.length) * run.length)
