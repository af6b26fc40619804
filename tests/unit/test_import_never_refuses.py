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
NOT_BUILT = {
    "cohere_compass_text", "dbrx", "dots1", "dots3_note", "emu3", "gemma3n", "gemma4_assistant",
    "gemma4_unified_assistant", "hunyuan_v1_dense", "hunyuan_v1_moe", "lfm2_moe", "ministral",
    "nemotron", "qwen4_exp", "qwen4_exp_text", "reformer",
}  # fmt: skip
"""Types of which transformers does not build the class from its own defaults (gemma3n: without
the packages for images)."""
DEEP = {"zamba", "zamba2"}
"""Types that are not built with two layers."""
CAUSAL = {
    name: kind
    for name, kind in NAMES.items()
    if name not in NOT_BUILT | {"gpt-sw3"}  # that has GPT-2's
}
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
    config = default_config(model_type, kind)
    if isinstance(config.get("num_hidden_layers"), int) and "layer_types" not in config:
        config["num_hidden_layers"] = config["num_hidden_layers"] if model_type in DEEP else 2
    assert built(kind, config) is not None
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


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(NOT_BUILT))
def test_what_is_left_out_is_not_built(model_type):
    """A type that a later transformers builds is to be among the others."""
    try:
        config = default_config(model_type, NAMES[model_type])
    except Exception:  # its defaults are no config
        return
    assert built(NAMES[model_type], config) is None


def default_config(model_type: str, kind: str) -> dict[str, Any]:
    """Return the config.json of a class's defaults."""
    config = json.loads(getattr(transformers, kind).config_class().to_json_string(use_diff=False))
    config.pop("time_step_limit", None)  # written as text that classes do not read
    return config | {"model_type": model_type, "architectures": [kind]}


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
