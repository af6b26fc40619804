"""Classes of `transformers`: built, counted and traced."""
