"""Hugging Face's transformers in offline mode: nothing is downloaded."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import transformers

transformers.logging.set_verbosity_error()

__all__ = ["transformers"]
