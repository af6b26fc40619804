"""Parameters of the parts of a model that are no language model: encoder of images, connector.

`configs/huggingface/other_parts.yaml` has them as expressions; tests compare them with the classes
of transformers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from modelbudget.architecture.record import MAX_COUNT
from modelbudget.common.expressions import Expression
from modelbudget.common.strict import Strict, shipped
from modelbudget.common.validation_messages import show
from modelbudget.huggingface.classes import FOLDER, SECTIONS, Formula

OF_IMAGES = "vision_config"


class Part(Strict):
    """Parameters of one part, as a sum of expressions of keys."""

    defaults: dict[str, bool | int | str | list[int]] = Field({})
    derive: dict[str, Formula] = Field({})
    parameters: list[Formula] = Field([])

    def count(self, values: Mapping[str, Any]) -> int:
        """Return the number of parameters. Raises ValueError."""
        defaults = dict(_values(self.defaults))
        known = {**defaults, **values}
        for key, default in defaults.items():
            if type(default) is int and (type(known[key]) is not int or known[key] < 0):
                raise ValueError(f"{key} = {show(known[key])}: must be a whole number")
        known |= {name: Expression(text)(known) for name, text in self.derive.items()}
        return sum(int(Expression(text)(known)) for text in self.parameters)


class Whole(Part):
    """What connects an encoder with a language model, and which encoder."""

    encoder: str


class OtherParts(Strict):
    """Encoders by the model_type of their config, and wholes by that of theirs."""

    encoders: dict[str, Part]
    wholes: dict[str, Whole]


other_parts = shipped(FOLDER / "other_parts.yaml", OtherParts, Whole, Part, rest=SECTIONS)


def parameters(config: Mapping[str, Any], left_out: list[str], d_model: int) -> int | None:
    """Return the parameters of the other parts than a language model; None if they are not known.

    `config`: that of the whole. `left_out`: its keys with the configs of other parts. `d_model`:
    width of the language model.
    """
    whole = other_parts().wholes.get(config["model_type"])
    if whole is None or left_out != [OF_IMAGES]:
        return None
    of_images = config[OF_IMAGES]
    named = str(of_images.get("model_type", ""))
    is_usual = not named or named.startswith(config["model_type"])
    encoder = other_parts().encoders.get(whole.encoder if is_usual else named)
    if encoder is None:
        return None
    values = dict(_values(config)) | dict(_values(encoder.defaults)) | dict(_values(of_images))
    values["d_model"] = d_model
    try:
        n = encoder.count(values) + whole.count(values)
    except ValueError:  # a size is missing, or no whole number
        return None
    return n if 0 < n <= MAX_COUNT else None


def _values(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values of keys; of a list its first one, and its length as n_KEY."""
    for key, value in config.items():
        if isinstance(value, list):
            yield f"n_{key}", len(value)
            yield key, value[0] if value else None
        else:
            yield key, value
