"""Where a class can be built from a config.json, the file is read: each key of it with odd values.

What is read is counted by formula or on the class; tests/command/test_class_of_file.py has counts.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from modelbudget.common.errors import InputError
from modelbudget.huggingface.offline import transformers
from modelbudget.sweeps.read import file_base

AUTO: Any = transformers.models.auto.modeling_auto
NAMES = AUTO.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # the mapping of classes would import all of them
CAUSAL = {name: kind for name, kind in NAMES.items() if name != "gpt-sw3"}  # that has GPT-2's
IN_MAKE_TEST = ("gpt2", "granitemoehybrid", "llama")
WITHOUT_EFFECT = re.compile(
    r"_.*|transformers_version|model_type|architectures|.*token_id|id2label|label2id|dtype|output_.*"
    r"|return_dict|problem_type|use_cache|rope_.*|.*dropout.*|.*_eps.*|initializer.*|time_step_limit"
)


def odd_values(config: dict) -> Iterator[tuple[str, object]]:
    """Yield keys with a value of another kind: a list for a number, nothing, another activation."""
    for key, value in config.items():
        if WITHOUT_EFFECT.fullmatch(key):
            continue
        if isinstance(value, bool):
            yield key, not value
        elif isinstance(value, int):
            yield from ((key, odd) for odd in ([value] * 2, 0, None, value + 1))
        elif value is None:
            yield from ((key, odd) for odd in (2, True))
        else:
            yield from ((key, odd) for odd in ("tanh", None))
    yield "a_key_of_mine", 3


@pytest.mark.parametrize(
    "model_type",
    [
        name if name in IN_MAKE_TEST else pytest.param(name, marks=pytest.mark.slow)
        for name in CAUSAL
    ],
)
def test_what_the_class_builds_is_read(model_type, tmp_path):
    kind = CAUSAL[model_type]
    default = getattr(transformers, kind).config_class()
    config = json.loads(default.to_json_string(use_diff=False))
    config |= {"model_type": model_type, "architectures": [kind]}
    if isinstance(config.get("num_hidden_layers"), int) and "layer_types" not in config:
        config["num_hidden_layers"] = 2
    config.pop("time_step_limit", None)  # written as text that classes do not read
    if built(kind, config) is None:
        pytest.skip("its default config cannot be built")
    refused = []
    for key, value in odd_values(config):
        keys = {**config, key: value}
        (tmp_path / "config.json").write_text(json.dumps(keys))
        try:
            file_base(tmp_path, "config.json")
        except InputError as error:
            refused.append((keys, str(error)))
    for keys, reason in refused:
        assert built(kind, keys) is None, reason


def built(kind: str, config: dict) -> int | None:
    """Count the parameters of the class that a config.json is of; None if it cannot be built."""
    config_class = transformers.CONFIG_MAPPING[config["model_type"]]
    keys = {key: value for key, value in config.items() if key != "model_type"}
    try:
        with torch.device("meta"):
            model = getattr(transformers, kind)(config_class(**keys))
    except Exception:  # each class raises its own errors
        return None
    return sum(parameter.numel() for parameter in model.parameters())
