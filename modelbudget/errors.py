"""The one error a user should ever see."""


class InputError(Exception):
    """Input that cannot be used. Holds every mistake found, one line each."""

    def __init__(self, mistakes: list[str]):
        self.mistakes = mistakes
        super().__init__("\n".join(mistakes))


def did_you_mean(name: str, known) -> str:
    """'; did you mean n_vocab?' when a known name is close, else nothing."""
    from difflib import get_close_matches  # imported late: only mistakes pay for it

    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
