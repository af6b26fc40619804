"""The translation of config.json files as data for the page's script.

The same data as Python's (`configs/huggingface/`); expressions are functions.
"""

from contextlib import suppress
from functools import cache

from modelbudget.architecture.record import MAX_DEPTH
from modelbudget.catalogue.named_models import Base
from modelbudget.components.attention.attention_fields import ATTEND, SWITCHES
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.mixers import mixers
from modelbudget.families.decoder import Decoder
from modelbudget.huggingface.classes import (
    Meaning,
    Translation,
    misdescribed,
    shared_keys,
    translations,
)
from modelbudget.huggingface.nested_text_config import DTYPES, OF_PART, OF_WHOLE
from modelbudget.huggingface.read_config import BASIC_SIZES, fields_of
from modelbudget.report.page_functions import Function, of_expression
from modelbudget.sweeps.derive import named_architecture

FAMILY = Decoder.name()

AS_THEY_ARE = {
    "model_type", "defaults", "aliases", "mixers", "layer_types", "layer_mlps", "attention_at",
    "attention_counts_from", "dense_layers", "rope_layers", "ignored",
}  # fmt: skip
"""Keys of a class that the page reads as its file has them."""
OF_ALL = {"known_as", "known_where", "text_parts", "ignored", "layer_types", "not_used"}
"""The same of the file of all classes."""
WHERE = ("attention_where", "experts_where")
"""Expressions of keys and a layer's number."""


@cache
def default_decoders() -> dict[str, Decoder]:
    """Return the decoders of all classes, each with the defaults of its config.

    Without those of classes whose defaults are no model: their config.json must give more.
    """
    decoders = {}
    for name, translation in _classes().items():
        with suppress(ValueError):
            fields = fields_of(name, {"model_type": translation.model_type})
            decoders[name] = named_architecture(Base(name, name, Decoder, fields, {}))
    return decoders


def translation_data() -> dict:
    """Return what the keys of each class mean, and the other classes that are known."""
    shared = shared_keys()
    return shared.model_dump(mode="json", include=OF_ALL) | {
        "classes": {name: _class(name, entry) for name, entry in _classes().items()},
        "other_families": {
            name: entry.family for name, entry in translations().items() if entry.family != FAMILY
        },
        "basic_sizes": sorted(BASIC_SIZES),
        "most_layers": MAX_DEPTH,
        "part": OF_PART.pattern,
        "of_whole": OF_WHOLE,
        "dtype_keys": DTYPES,
        "sizes_of_parts": {
            name: list(entry.SIZES) for name, entry in (mixers() | feed_forward()).items()
        },
        "attend": ATTEND,
        "of_attention": [*SWITCHES, "qk_norm", "qk_norm_bias", "d_rotary"],
        "misdescribed": [
            {"configs": one.configs, "note": one.line} for one in misdescribed().misdescribed
        ],
        "dtypes": {str(case.value): case.fields["dtype"] for case in shared.run["dtype"]},
        "derived": [
            follower(name, of_expression(text)) for name, text in Decoder.derivations().items()
        ],
    }


def follower(name: str, value: Function) -> tuple[str, Function, tuple[str, ...]]:
    """Return a field that follows others: its name, the function of its value, and the others."""
    return name, value, value.names


def _classes() -> dict[str, Translation]:
    return {
        name: translation
        for name, translation in translations().items()
        if translation.family == FAMILY
    }


def _class(name: str, translation: Translation) -> dict:
    return translation.model_dump(mode="json", include=AS_THEY_ARE) | {
        "fixed": translation.fixed | translation.classes[name],
        "meanings": {key: _meaning(translation.meaning(key)) for key in translation.defaults},
        "requires": [(text, of_expression(text)) for text in translation.requires],
        "computed": {field: of_expression(text) for field, text in translation.computed.items()},
        **{key: of_expression(text) for key in WHERE if (text := getattr(translation, key))},
    }


def _meaning(meaning: Meaning | None) -> str | list | None:
    if isinstance(meaning, str) or meaning is None:
        return meaning
    return [(case.value, case.fields) for case in meaning]
