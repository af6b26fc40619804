"""The largest number of bytes that live at one moment of a training step.

Forward and backward are told node by node (`timeline.py`), each part in the file of its component;
here they are put together. Layers of one kind are alike, so from one to the next live bytes change
by the same amount, and the largest number is met in the first or in the last of them.
"""

from modelbudget.architecture.layer_groups import layer_groups
from modelbudget.architecture.operations import largest, positive
from modelbudget.architecture.run_config import bytes_of, tokens
from modelbudget.components import dropout, embedding, layer, norm
from modelbudget.memory.timeline import Node, change, times, watched


def covered(a, r):
    """Attention, of all tokens or of those in a window, or latent attention in all layers; and an
    MLP or experts in every layer. Not a gate of shared experts over a single channel, where torch
    has nothing to sum.
    """
    kinds = set(a.mixers.split())
    mixed = kinds <= {"attention", "local"} or kinds == {"latent"}
    gates_one_channel = a.shared_gate * (1 - positive(a.d_model - 1))
    return int(mixed and "none" not in a.mlps.split()) * (1 - gates_one_channel)


def forward_backward(a, r, before):
    """The peak of forward, loss and backward, where `before` bytes live when backward begins.

    The loss has two of the size of the logits: the gradient of the logarithms of probabilities,
    and that of the logits, beside the logarithms. Forward may need more, in the last layer's
    attention; recomputed, layers run forward once more before they run backward.
    """
    logits = bytes_of(r.dtype) * tokens(r) * embedding.rows(a)
    of_end = _kept_at_the_end(a, r)
    peaks, live = watched(before, _head(a, r, logits))
    peaks.append(before + 2 * logits)
    mixers = a.mixers.split()
    kinds = list(layer_groups(a, mixers if len({*mixers}) > 1 else mixers[:1]))
    hides = positive(r.length - a.window)
    forwards = [layer.forward(a, r, kind.second, kind.local * hides) for kind in kinds]
    backwards = [layer.backward(a, r, kind.second, kind.local * hides) for kind in kinds]
    if r.recompute == "full":
        backwards = [[*again, *nodes] for again, nodes in zip(forwards, backwards, strict=True)]
    for kind, forward, backward in zip(kinds, forwards, backwards, strict=True):
        for place in kind.first, kind.last:
            at = live + _from(a, kinds, backwards, place + 1)
            peaks += [kind.is_there * peak for peak in watched(at, backward)[0]]
        if r.recompute != "full":
            # What a layer has kept begins with its input.
            at = before - of_end + _from(a, kinds, forwards, kind.last, -1)
            at -= (a.n_layer - kind.last - 1) * _states(a, r)
            peaks += [kind.is_there * peak for peak in watched(at, forward)[0]]
    ends, _ = watched(live + _from(a, kinds, backwards, 0), _embedding(a, r))
    return largest(*peaks, *ends)


def _kept_at_the_end(a, r):
    """What forward leaves behind after the layers: the loss too, but no targets."""
    kept = embedding.saved(a, r)
    loss = bytes_of(r.dtype) + kept["loss"] - embedding.INDEX * tokens(r)
    return a.final_norm * norm.saved(a, r) + kept["head.projection"] + kept["head"] + loss


def _from(a, kinds, nodes, place, sign=1):
    """What the layers from a place on leave behind."""
    return sum(
        sign * change(of_kind) * (kind.before(a.n_layer) - kind.before(place))
        for kind, of_kind in zip(kinds, nodes, strict=True)
    )


def _states(a, r):
    return bytes_of(r.dtype) * tokens(r) * a.d_model


def _head(a, r, logits) -> list[Node]:
    """Head, its projection, the last norm."""
    size, states = bytes_of(r.dtype), _states(a, r)
    table = size * embedding.factorised(a)["embedding.token"]
    width = a.d_emb + (1 - positive(a.d_emb)) * a.d_model
    read = size * tokens(r) * width
    projection = (size * a.d_emb * a.d_model + states, read + states)
    return [
        (table + size * a.head_bias * embedding.rows(a) + read, logits + read),
        *times(positive(a.d_emb), [projection]),
        *times(a.final_norm, norm.backward(a, r)),
    ]


def _embedding(a, r) -> list[Node]:
    """Norm; dropout; positions, summed over the batch; the projection; words; and with a tied head
    the sum of both its gradients, which stays beside them until it is made.
    """
    size, states = bytes_of(r.dtype), _states(a, r)
    table = size * embedding.factorised(a)["embedding.token"]
    learned, factorised = int(a.position == "learned"), positive(a.d_emb)
    places = learned * size * r.length * a.d_model
    rows = size * embedding.position(a)
    narrow = size * tokens(r) * a.d_emb
    projection = (size * a.d_emb * a.d_model + narrow, states + narrow)
    return [
        *times(a.embedding_norm, norm.backward(a, r)),
        *times(r.dropout, [(states, dropout.saved(a, r) + states)]),
        (places, 0),
        (rows, places + learned * embedding.INDEX * r.length),
        *times(factorised, [projection]),
        (table, factorised * narrow + (1 - factorised) * states),
        (a.tied * table, a.tied * 2 * table),
    ]
