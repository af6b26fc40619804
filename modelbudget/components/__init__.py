"""One part of a model a file: its numbers and its formulas. Its torch module has the same name
under `modelbudget/modules/`; the two never import each other (a test holds them apart).
"""
