"""Layers: their parts, values and timelines, one subject a file (used through `layer.py`)."""
