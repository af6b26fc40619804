"""Quantities of a model, each read off a run of its program on a tape (`operations/tape.py`)."""
