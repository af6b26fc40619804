"""Torch's operations on sizes: what each allocates, saves for backward, frees and computes.

A tensor here has a shape, strides, a dtype and a storage, and no numbers. A part of a model is a
short program of these operations (`components/`), which a tape runs (`tape.py`) as torch runs the
module of the same name, and then its backward pass as autograd does (`autograd.py`). Nothing here
imports torch or reads a module; each rule is a fact about torch 2.13's kernels, with its source,
and is tested against torch alone (`tests/operations/`).
"""
