"""Hugging Face's GPT-2, built from the numbers of our architecture record."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from modelbudget.families.decoder import Decoder


def build_gpt2(a: Decoder, device: str) -> GPT2LMHeadModel:
    """The model as its constructor leaves it.

    Not under `no_init_weights`, which saves two seconds and skips tying along with the values.
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
    with torch.device(device):
        return GPT2LMHeadModel(config)
