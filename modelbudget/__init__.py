"""Where the budget of a sequence model goes: predicted by formulas, measured on torch models."""
