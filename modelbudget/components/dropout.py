"""Dropout of the embedding, and of what each attention and MLP adds."""

from modelbudget.architecture.run_config import bytes_of, mask_bytes, tokens


def saved(a, r):
    """Bytes that backward needs: for each channel of each token what was dropped (Korthikanti et
    al. 2022, §4.1: one byte).
    """
    return r.dropout * mask_bytes(r.backend, bytes_of(r.dtype)) * tokens(r) * a.d_model
