"""The JSON Schema of a sweep file, for editors.

`python -m modelbudget.sweeps.json_schema` writes it.
"""

import json
from pathlib import Path

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from modelbudget.architecture.run_config import RunConfig
from modelbudget.families import families
from modelbudget.families.module import Module
from modelbudget.sweeps.sweep_file import Sweep

PATH = Path(__file__).parents[2] / "workflow" / "schemas" / "sweep.schema.json"


def sweep_schema() -> dict:
    """Return the schema of `Sweep` with the fields of all families and of the run settings."""
    schema = Sweep.model_json_schema()
    fields = _fields()
    values = _closed(fields)
    chosen = {"base": {"type": "string"}, "label": {"type": "string"}}
    lists = {
        name: {
            "description": field.get("description", ""),
            "anyOf": [{"$ref": "#/$defs/Range"}, {"type": "array", "items": field}],
        }
        for name, field in fields.items()
    }
    properties = schema["properties"]
    properties["fixed"] |= values
    bases = {"type": "array", "items": chosen["base"]}
    properties["grid"] |= _closed({"base": bases} | lists)
    properties["points"]["items"] = {"type": "object"} | _closed(chosen | fields)
    properties["derive"] |= _closed({name: {"type": "string"} for name in fields})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


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
    own = Module.model_json_schema()["properties"]["module"]
    found: dict[str, list[dict]] = {"module": [{k: v for k, v in own.items() if k != "title"}]}
    for definition in schema["$defs"].values():
        for name, field in definition["properties"].items():
            plain = {k: v for k, v in field.items() if k not in ("default", "title")}
            if plain not in found.setdefault(name, []):
                found[name].append(plain)
    return {
        name: kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        for name, kinds in sorted(found.items())
    }


def _closed(properties: dict) -> dict:
    return {"properties": properties, "additionalProperties": False}


def text() -> str:
    """Return the content of the schema file."""
    return json.dumps(sweep_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
