"""Inputs and outputs of formulas: records of numbers, run settings, terms, readings."""
