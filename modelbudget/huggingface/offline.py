"""Hugging Face's transformers without its network: whatever is asked of it, nothing is fetched."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import transformers

transformers.logging.set_verbosity_error()

__all__ = ["transformers"]
