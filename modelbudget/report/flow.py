"""In which order a model's components stand in a table: as the data flows through them."""

_LAST = ("head", "loss", "pooler", "transform", "next_sentence")


def flow(component: str) -> tuple[int, int]:
    """A sort key: embeddings, the encoder's layers, the decoder's, their final norm, heads.

    Components of one place are left in the order that they come in.
    """
    first, *rest = component.split(".")
    if first in _LAST:
        return 3, 0
    if first in ("encoder", "decoder"):
        return 1 + (first == "decoder"), _place(rest)
    return _place([first, *rest]), 0


def _place(parts: list[str]) -> int:
    """Before the layers of its side, one of them, or after."""
    return 2 if "final" in parts else int(parts[0] == "layer")
