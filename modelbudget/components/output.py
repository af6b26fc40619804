"""The head over states of any width."""


def head(a, width):
    """A tied head owns no matrix (Press & Wolf 2017); its bias, if any, is its own."""
    return (1 - a.tied) * a.n_vocab * width + a.head_bias * a.n_vocab
