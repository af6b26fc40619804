"""Where the budget of a sequence model goes: predicted by formulas, measured on torch models."""

__version__ = "0.1.0"
