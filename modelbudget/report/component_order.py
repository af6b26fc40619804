"""The order of components in tables: the order in which data passes through the model."""

_FIRST = ("embedding", "norm", "dropout")
_LAST = ("pooler", "next_sentence", "transform", "head", "loss")


def sort_key(component: str) -> tuple[int, int]:
    """Return a sort key: embeddings, layers of the encoder, of the decoder, final norms, heads.

    Components with the same key keep their order.
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
    """Return 0 before the layers of an encoder or decoder, 1 for its layers, and 2 after them."""
    return 2 if "final" in parts else int(parts[:1] == ["layer"])
