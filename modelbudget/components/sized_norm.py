"""A norm over any number of channels: embeddings may be narrower than the residual stream."""


def parameters(a, width):
    """One scale and, in a full LayerNorm, one shift for each of `width` channels.

    LayerNorm: Ba et al. 2016, §3; RMSNorm: Zhang & Sennrich 2019, eq. 4.
    """
    return (a.norm_scale + a.norm_bias) * width
