"""Dropout of the embedding and of each part's output; that of attention is the kernel's."""

from modelbudget.architecture.run_values import bytes_of, drops_outputs, mask_bytes, tokens


def of_embedding(r):
    """1 where the embedding has dropout."""
    return r.dropout * int(r.dropout_in == "model")


def mask(a, r):
    """Return the bytes that one dropout saves for backward, of each channel of each token.

    One byte each (Korthikanti et al. 2022, §4.1); on a CPU one element of the run's dtype.
    """
    return mask_bytes(r.backend, bytes_of(r.dtype)) * tokens(r) * a.d_model


def saved(a, r):
    """Return the bytes saved for backward by the dropout of a part's output."""
    return drops_outputs(r) * mask(a, r)
