"""Sweep files: schema, expansion to points, and the checks before a run starts."""
