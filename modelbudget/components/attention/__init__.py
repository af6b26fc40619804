"""Attention: what its mixers are made of, one subject a file."""
