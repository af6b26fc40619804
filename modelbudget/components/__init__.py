"""One part of a model per file: its fields and its formulas.

Its torch module has the same name under `modelbudget/modules/`; the two never import each other (a
test checks this).
"""
