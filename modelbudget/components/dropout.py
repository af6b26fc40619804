"""Dropout of the embedding and of each part's output."""

from modelbudget.architecture.run_config import bytes_of, mask_bytes, tokens


def saved(a, r):
    """Bytes saved for backward: the mask of each channel of each token (Korthikanti et al. 2022,
    §4.1: one byte).
    """
    return r.dropout * mask_bytes(r.backend, bytes_of(r.dtype)) * tokens(r) * a.d_model
