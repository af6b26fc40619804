"""Dropout of the embedding and of each part's output; that of attention is the kernel's.

One byte is saved of each channel of each token (Korthikanti et al. 2022, §4.1).
"""

from modelbudget.architecture.run_values import drops_outputs, tokens


def saved_of_embedding(a, r):
    """Return the bytes saved for backward by the dropout of the embedding."""
    return r.dropout * int(r.dropout_in == "model") * tokens(r) * a.d_model


def saved(a, r):
    """Return the bytes saved for backward by the dropout of a part's output."""
    return drops_outputs(r) * tokens(r) * a.d_model
