"""Heads of EAGLE 3 in vLLM, which draft tokens from states of a model: bytes on one device.

Li et al. 2025, "EAGLE-3", §3; vLLM's models/llama_eagle3.py. States of three layers are projected
to one, which a layer of a Llama reads next to the embedding of a token. Norms and a head of its
own follow; the embedding is the model's.
"""

from typing import Any

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import bytes_of
from modelbudget.components.attention.attention_fields import PLAIN
from modelbudget.predict.engine_weights import rank_of

DRAFTED_VOCABULARY = 32_000
"""Tokens that published heads draft, each with its number in the model's vocabulary."""
LAYERS_READ, NORMS, INDEX = 3, 4, 8


def draft_head_bytes(a: Any, run: RunConfig) -> int:
    """Return the bytes of a head whose layer has the sizes of the model's; 0 without one.

    The projection is whole on each device. Raises ValueError where heads have other sizes.
    """
    if run.draft_head == "none":
        return 0
    fields = vars(a)
    is_plain = fields.get("mixers") in PLAIN and fields.get("mlps") == "mlp"
    if not is_plain or a.n_head * a.d_head != a.d_model:
        raise ValueError(
            f"draft_head = {run.draft_head}: known of dense decoders with n_head · d_head = "
            "d_model alone, whose sizes its layer has; allowed: `draft` with the name of a model"
        )
    rank: Any = rank_of(a, run)
    d = a.d_model
    heads, kv_heads = rank.n_head * a.d_head, rank.n_kv_head * a.d_head
    layer = 2 * d * (heads + 2 * kv_heads) + heads * d + 3 * d * rank.d_ff
    head = ceil_div(DRAFTED_VOCABULARY, run.tensor_parallel) * d
    numbers = LAYERS_READ * d * d + layer + NORMS * d + head
    return bytes_of(run.dtype) * numbers + INDEX * DRAFTED_VOCABULARY
