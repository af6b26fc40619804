"""The JSON Schemas of the files of sweeps, models and accelerators, for editors.

`make schema` writes them.
"""

import json

from pydantic import BaseModel
from pydantic.json_schema import (
    GenerateJsonSchema,
    JsonSchemaMode,
    JsonSchemaValue,
    models_json_schema,
)
from pydantic_core.core_schema import ModelSchema

from modelbudget.architecture.run_config import RunConfig
from modelbudget.catalogue.accelerators import AcceleratorsFile
from modelbudget.catalogue.named_models import Catalogue, Series
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS, HOME
from modelbudget.families import families
from modelbudget.families.module import Module
from modelbudget.sweeps.sweep_file import Sweep

FOLDER = HOME / "workflow" / "schemas"
VERSION = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
FIELDS = {"$ref": "#/$defs/Fields"}
EXPRESSIONS = {"$ref": "#/$defs/Expressions"}
MEANINGS = load_yaml(CONFIGS / "file_keys.yaml")


class WithMeanings(GenerateJsonSchema):
    """The schemas of records, with what their keys mean."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Return the schema of one record."""
        json_schema = super().model_schema(schema)
        for base in schema["cls"].__mro__:
            for name, meaning in MEANINGS.get(base.__name__, {}).items():
                json_schema["properties"][name]["description"] = meaning
        return json_schema


def sweep_schema() -> dict:
    """Return the schema of `Sweep` with the fields of all families and of the run settings."""
    schema = Sweep.model_json_schema(schema_generator=WithMeanings)
    fields = _fields()
    values = _closed(fields)
    base = _base()
    schema["$defs"]["Base"] = base
    chosen = {"base": {"$ref": "#/$defs/Base"}, "label": {"type": "string"}}
    lists = {
        name: {
            "description": field.get("description", ""),
            "anyOf": [{"$ref": "#/$defs/Range"}, {"type": "array", "items": field}],
        }
        for name, field in fields.items()
    }
    properties = schema["properties"]
    properties["base"] |= {"anyOf": [chosen["base"], {"type": "null"}]}
    properties["fixed"] |= values
    bases = {"type": "array", "items": chosen["base"]}
    properties["grid"] |= _closed({"base": bases} | lists)
    properties["points"]["items"] = {"type": "object"} | _closed(chosen | fields)
    properties["derive"] |= _expressions(fields)
    return VERSION | schema


def model_schema() -> dict:
    """Return the schema of `Series`, a file of configs/models, with the fields of all families."""
    schema = Series.model_json_schema(schema_generator=WithMeanings)
    fields = _fields()
    schema["$defs"] |= {"Fields": _closed(fields), "Expressions": _expressions(fields)}
    schema["properties"]["family"] |= {"anyOf": [{"enum": sorted(families())}, {"type": "null"}]}
    schema["properties"]["fields"] |= FIELDS
    schema["properties"]["derive"] |= EXPRESSIONS
    schema["$defs"]["Model"]["properties"]["fields"] |= FIELDS
    return VERSION | schema


def accelerators_schema() -> dict:
    """Return the schema of configs/accelerators.yaml."""
    return VERSION | AcceleratorsFile.model_json_schema(schema_generator=WithMeanings)


def _base() -> dict:
    """Return the schema of a base: editors complete the known names, and any other is allowed."""
    known = sorted(Catalogue(HOME / "configs" / "models").bases)
    return {"anyOf": [{"enum": known}, {"type": "string"}]}


def _fields() -> dict[str, dict]:
    """Return the schema of every field of all families and of the run settings.

    None is required, since that depends on the base. A name that families use for different fields
    allows the values of all of them.
    """
    families_with_fields = [family for family in families().values() if family.has_formula]
    kinds: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (kind, "validation") for kind in (*families_with_fields, RunConfig)
    ]
    _, schema = models_json_schema(kinds)
    # The sizes of a user's module may be 0, those of families with the same names may not.
    of_module = Module.model_json_schema()["properties"]["module"]
    by_name: dict[str, list[dict]] = {
        "module": [{k: v for k, v in of_module.items() if k != "title"}]
    }
    for definition in schema["$defs"].values():
        for name, field in definition["properties"].items():
            plain = {k: v for k, v in field.items() if k not in ("default", "title")}
            if plain not in by_name.setdefault(name, []):
                by_name[name].append(plain)
    return {
        name: kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        for name, kinds in sorted(by_name.items())
    }


def _closed(properties: dict) -> dict:
    return {"properties": properties, "additionalProperties": False}


def _expressions(fields: dict) -> dict:
    return _closed({name: {"type": ["string", "number"]} for name in fields})


SCHEMAS = {
    "sweep.schema.json": sweep_schema,
    "model.schema.json": model_schema,
    "accelerators.schema.json": accelerators_schema,
}


def text(name: str) -> str:
    """Return the content of a schema file."""
    return json.dumps(SCHEMAS[name](), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in SCHEMAS:
        (FOLDER / name).write_text(text(name), encoding="utf-8")
