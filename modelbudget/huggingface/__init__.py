"""Hugging Face: config.json files and `transformers` classes, without any download."""
