"""In which order a model's components stand in a table: as the data flows through them."""

_FIRST = ("embedding", "norm", "dropout")
_LAST = ("pooler", "next_sentence", "transform", "head", "loss")


def flow(component: str) -> tuple[int, int]:
    """A sort key: embeddings, the encoder's layers, the decoder's, their final norm, heads.

    Components of one place are left in the order that they come in.
    """
    first, *rest = component.split(".")
    if first in _LAST:
        return 4, _LAST.index(first)
    if first in ("encoder", "decoder"):
        return 1 + (first == "decoder"), _place(rest)
    if place := _place([first, *rest]):
        return 3, place
    return 0, _FIRST.index(first) if first in _FIRST else 0


def _place(parts: list[str]) -> int:
    """Before the layers of its side, one of them, or after."""
    return 2 if "final" in parts else int(parts[0] == "layer")
