"""How much of a file is explained."""

from modelbudget.api.explained import Explained


def explained_share(of_file: Explained) -> float:
    """Return the share of the bytes that are exact or bounded, of those that a formula is about."""
    known = [line for line in of_file.lines if line.n_bytes and line.verdict != "read"]
    whole = sum(line.n_bytes for line in known)
    n_unexplained = sum(
        line.n_bytes if line.verdict == "asked" else line.unexplained for line in known
    )
    return 1 - n_unexplained / whole if whole else 0.0
