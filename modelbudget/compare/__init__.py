"""Comparison of predictions, measurements and references."""
