"""The Python interface: models, their budgets, and results of sweeps. Used as `import modelbudget`.

Predictions import neither torch nor transformers.
"""
