"""Hugging Face's GPT-2, built from our architecture record."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
from transformers import GPT2Config, GPT2LMHeadModel

if TYPE_CHECKING:
    from modelbudget.families.decoder import Decoder


def build_gpt2(a: Decoder, device: str) -> GPT2LMHeadModel:
    """Build the model without initialising its weights.

    `no_init_weights` is not used, since it skips tying too.
    """
    config = GPT2Config(
        vocab_size=a.n_vocab,
        n_positions=a.n_ctx,
        n_embd=a.d_model,
        n_layer=a.n_layer,
        n_head=a.n_head,
        n_inner=a.d_ff,
        tie_word_embeddings=a.tied,
    )
    undrawn = patch.object(torch.Tensor, "normal_", lambda tensor, *_, **__: tensor)
    with torch.device(device), undrawn:
        return GPT2LMHeadModel(config)
