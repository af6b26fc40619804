"""Dropout of the embedding and of each part's output."""

from modelbudget.architecture.run_config import bytes_of, mask_bytes, tokens


def saved(a, r):
    """Return the bytes saved for backward: the mask of each channel of each token.

    One byte each (Korthikanti et al. 2022, §4.1); on a CPU one element of the run's dtype.
    """
    return r.dropout * mask_bytes(r.backend, bytes_of(r.dtype)) * tokens(r) * a.d_model
