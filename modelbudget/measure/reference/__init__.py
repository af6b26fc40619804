"""Classes of transformers, measured: parameter counts by component."""
