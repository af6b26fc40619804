"""Sweep files: their schema, their points, and the checks before any work starts."""
