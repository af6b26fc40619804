"""Names of the linear layers of a class, which patterns in a quantization_config choose among."""

import re
from collections.abc import Iterable
from typing import Any

from modelbudget.components.attention.attention_fields import PLAIN

LINEAR = "Linear"
"""The target that means every linear layer."""
EMBEDDING = "model.embed_tokens"
PATTERN = "re:"
NAMED_ALIKE = {
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "granite", "olmo2", "cohere",
    "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe",
}  # fmt: skip
"""Model types whose linear layers have the names below."""
MAX_NAMES = 200_000
MAX_PATTERNS = 8
WORDS = r"\((\?:)?\w+(\|\w+)*\)"
SIMPLE = re.compile(rf"(?!.*({WORDS}.*){{3}})\^?(\.[*+]|\\d\+|\[0-9\]\+|\\?\.|\w|{WORDS})*\$?")
"""Patterns that take a short time: words, any letters between them, and choices of words."""
MAX_REPEATED, MANY_NAMES = 3, 5000
"""Parts of a pattern that may be repeated, one less for more names than these."""


def linear_layers(config: dict[str, Any], fields: dict[str, Any]) -> dict[str, list[str]]:
    """Return names by part: `dense` and `experts` of layers, and `head` if it has a matrix.

    `fields`: those of the architecture. Empty if the names are not known.
    """
    model_type, n_layer = config.get("model_type"), fields.get("n_layer")
    n_expert = fields["n_expert"] if fields.get("mlps") == "moe" else 0
    mixers = {*str(fields.get("mixers", "attention")).split()}
    has_known_mlps = fields.get("mlps", "moe") == "moe" and fields.get("gated")
    if (
        model_type not in NAMED_ALIKE
        or not has_known_mlps
        or not (mixers <= {*PLAIN} or mixers == {"mla"})
    ):
        return {}
    if not isinstance(n_layer, int) or n_layer * (10 + 3 * n_expert) > MAX_NAMES:
        return {}
    attention = "q_proj k_proj v_proj o_proj"
    if mixers == {"mla"}:
        query = "q_a_proj q_b_proj" if fields.get("q_lora_rank") else "q_proj"
        attention = f"{query} kv_a_proj_with_mqa kv_b_proj o_proj"
    shared = "shared_expert" if model_type == "qwen2_moe" else "shared_experts"
    names: dict[str, list[str]] = {"dense": []} | ({"experts": []} if n_expert else {})
    for layer in range(n_layer):
        begin = f"model.layers.{layer}"
        names["dense"] += [f"{begin}.self_attn.{name}" for name in attention.split()]
        has_experts = n_expert and layer >= fields.get("n_dense_layer", 0)
        mlps = [f"mlp.{shared}"] if fields.get("d_shared") else []
        names["dense"] += _of_mlps(begin, mlps if has_experts else ["mlp"])
        if has_experts:
            names["experts"] += _of_mlps(begin, (f"mlp.experts.{n}" for n in range(n_expert)))
    return names if fields.get("tied", True) else names | {"head": ["lm_head"]}


def _of_mlps(begin: str, mlps: Iterable[str]) -> list[str]:
    return [f"{begin}.{mlp}.{name}_proj" for mlp in mlps for name in ("gate", "up", "down")]


def chosen(
    parts: dict[str, list[str]], targets: list[Any], ignored: Any
) -> dict[str, set[int | None]] | None:
    """Return the numbers of the groups of each part's layers; None: some stay as they are.

    As compressed-tensors (utils/match.py): a name before a pattern, a pattern before the class.
    Nothing if a target is none of these, a pattern is not a simple one, or the embedding is chosen.
    """
    lists = [ignored, *targets]
    if not all(
        isinstance(names, list) and all(isinstance(t, str) for t in names) for names in lists
    ):
        return None
    group_of_target = {text: number for number, names in enumerate(targets) for text in names}
    known = {name for of_part in parts.values() for name in of_part}
    texts = {*ignored, *group_of_target}
    patterns = {text.removeprefix(PATTERN) for text in texts if text.startswith(PATTERN)}
    repeated = MAX_REPEATED - (len(known) > MANY_NAMES)
    is_simple = (
        len(text) <= 200
        and SIMPLE.fullmatch(text)
        and text.count("*") + text.count("+") <= repeated
        for text in patterns
    )
    if len(patterns) > MAX_PATTERNS or not all(is_simple):
        return None
    if any(not t.startswith(PATTERN) and t not in known | {LINEAR} for t in group_of_target):
        return None
    try:
        compiled = {PATTERN + text: re.compile(text) for text in sorted(patterns)}
    except re.error:
        return None
    is_ignored = {*ignored}

    def group_of(name: str, of_class: str = LINEAR) -> int | None:
        matched = [
            name,
            *(text for text, pattern in compiled.items() if pattern.match(name)),
            of_class,
        ]
        if not is_ignored.isdisjoint(matched):
            return None
        return next((group_of_target[text] for text in matched if text in group_of_target), None)

    if group_of(EMBEDDING, "Embedding") is not None:
        return None
    return {part: {group_of(name) for name in of_part} for part, of_part in parts.items()}
