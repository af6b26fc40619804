"""Traces of modules without storage: what is live, saved and computed, operation by operation."""
