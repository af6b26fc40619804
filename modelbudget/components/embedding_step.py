"""Embedding and LM head in a training step, by closed formulas: saved bytes, FLOPs, timelines."""

from modelbudget.architecture.arithmetic import ceil_div, largest, positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import (
    INDEX,
    bytes_of,
    divides,
    is_sharded,
    of_states,
    tokens,
)
from modelbudget.components import embedding, loss, norm
from modelbudget.components.rope import ANGLE
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    all_gather,
    all_reduce,
    copied_in_order,
    times,
)
from modelbudget.operations.joining import UNSORTED, sorted_rows_bytes


def saved(a: Fields, r: Run) -> dict:
    """Return the bytes saved for backward by embedding, LM head and loss.

    The indices of rows of embeddings, of T5's buckets one for each pair of tokens; and the inputs
    of head and projections.
    """
    size, n = bytes_of(r.dtype), tokens(r)
    of_positions = {"learned": r.length, "buckets": r.length * r.length}.get(a.position, 0)
    return {
        "embedding.token": INDEX * n,
        "embedding.position": INDEX * of_positions,
        "embedding.projection": size * _tokens_projected(a, r) * a.d_emb,
        "head.projection": positive(a.d_emb) * size * tokens(of_states(r)) * a.d_model,
        "head": size * n * embedding.width(a),
        "loss": loss.saved(r, embedding.rows(a)),
    }


def _tokens_projected(a: Fields, r: Run):
    """Tokens whose embedding a device projects: all, if positions are added to them afterwards."""
    return tokens(r if a.position in ("learned", "sinusoidal") else of_states(r))


def saved_after_layers(a: Fields, r: Run):
    """Bytes saved by final norm, head and loss, and what else is live, without given targets."""
    by_part, of_targets = saved(a, r), INDEX * tokens(r)
    of_head = (
        by_part["head.projection"]
        + by_part["head"]
        + by_part["loss"]
        + loss.unsaved(r, embedding.rows(a))
        - of_targets
    )
    return a.final_norm * norm.saved(a, of_states(r)) + of_head


def final_norm(a: Fields, r: Run, unsaved):
    """Return the bytes live at the end of the final norm.

    In addition to those live when backward begins. `unsaved`: bytes that only the forward pass
    has. A norm that copies its input leaves it live.
    """
    s = of_states(r)
    states = bytes_of(r.dtype) * tokens(s) * a.d_model
    of_norm = norm.saved(a, s) + norm.copies_input(a, r) * states
    normed = a.final_norm * (of_norm + norm.forward_temporaries(a, s)) + states
    return normed + unsaved - saved_after_layers(a, r)


def gathered_for_head(a: Fields, r: Run):
    """Return the bytes live when a device gathers the length of the states that the head reads.

    In addition to those live when backward begins.
    """
    s = of_states(r)
    whole, part = (bytes_of(r.dtype) * tokens(run) * a.d_model for run in (r, s))
    copy = copied_in_order(r, whole)
    normed = a.final_norm * norm.saved(a, s) + part
    return r.sequence_parallel * (whole + copy) + normed - saved_after_layers(a, r)


def flops(a: Fields, r: Run) -> dict:
    """Count the FLOPs of a forward pass of the LM head and of the projections.

    A tied head is a matrix product too; an embedding lookup is none.
    """
    projection = 2 * a.d_emb * a.d_model
    return {
        "embedding.projection": _tokens_projected(a, r) * projection,
        "head.projection": tokens(of_states(r)) * projection,
        "head": 2 * tokens(r) * embedding.width(a) * embedding.rows(a),
    }


def head_backward(a: Fields, r: Run) -> Timeline:
    """Loss, head, its projection, the last norm."""
    size, n = bytes_of(r.dtype), tokens(r)
    n_rows, width = embedding.rows(a), embedding.width(a)
    states, logits, read = (size * n * m for m in (a.d_model, n_rows, width))
    weight = size * n_rows * width
    bias = size * a.head_bias * n_rows
    of_projection, of_head = size * a.d_emb * a.d_model, (1 - a.tied) * weight + bias
    projection = [
        Allocation("head projection gradients", of_projection + states, read + states),
        Allocation("head projection gradients done", gradients=of_projection),
    ]
    return [
        *loss.backward(r, n_rows),
        Allocation("head gradients", weight + bias + read, logits + read),
        Allocation("head gradients done", gradients=of_head),
        *all_reduce(r, read),
        *times(positive(a.d_emb), projection),
        *times(a.final_norm, norm.backward(a, of_states(r))),
    ]


def backward(a: Fields, r: Run) -> Timeline:
    """Return the timeline of the backward pass of the embedding.

    Norm; positions, summed over the batch; the projection; the token embedding; and with a tied
    head the sum of both gradients of the matrix.
    """
    size, n, s = bytes_of(r.dtype), tokens(r), of_states(r)
    states, narrow = size * n * a.d_model, size * n * a.d_emb
    of_table, is_learned = size * embedding.table(a), int(a.position == "learned")
    factorised = positive(a.d_emb)
    # Held positions are those of one sequence, whose gradient is no sum if it is alone.
    is_sum = 1 - int(r.embeddings == "held") * (1 - positive(r.batch - 1))
    of_positions = is_sum * is_learned * size * r.length * a.d_model
    of_rows = size * embedding.position(a)
    freed = of_positions + is_learned * INDEX * r.length
    weight = size * a.d_emb * a.d_model
    projection = [
        Allocation(
            "embedding projection gradients", weight + narrow, states + narrow, gradients=weight
        )
    ]
    whole = of_table * r.tensor_parallel
    # Devices that compute one model have master weights only with a buffer of gradients, or shards.
    share = divides(r) * r.master_weights * (1 - is_sharded(r)) * (1 - a.tied) * of_table
    # A device copies its share of the whole gradient of a tied matrix, and adds the head's.
    copied = divides(r) * of_table
    freed_of_both = whole + copied + of_table
    of_both = Allocation(
        "sum with the head's gradient", copied + of_table, freed_of_both, gradients=of_table
    )
    unread = factorised * narrow + (1 - factorised) * states
    width = embedding.width(a)
    n_vocab = a.n_vocab * r.tensor_parallel  # the gradient is of the rows of all devices
    beside, of_places = (
        positive(n_taken - UNSORTED)
        * sorted_rows_bytes(n_taken, n_taken + n_rows - largest(n_taken, n_rows), d, size)
        for n_taken, n_rows, d in ((n, n_vocab, width), (r.length, a.n_ctx, a.d_model))
    )
    of_places = is_learned * of_places
    return [
        *times(a.embedding_norm, norm.backward(a, s)),
        *all_gather(r, states, freed=1),
        Allocation("gradient of positions summed over the batch", of_positions),
        Allocation(
            "position embedding gradient", of_rows + of_places, freed + of_places, gradients=of_rows
        ),
        *times(factorised, projection),
        Allocation("token embedding gradient", whole + beside, unread + beside),
        Allocation("copied to the buffer", share, share, gradients=(1 - a.tied) * whole),
        *times(a.tied, [of_both]),
    ]


def forward(a: Fields, r: Run) -> Timeline:
    """Token embedding (projected up from d_emb if factorised), position embedding, norm."""
    size = bytes_of(r.dtype) * r.batch * r.length
    states, narrow = size * a.d_model, size * a.d_emb
    normed = [*norm.forward(a, r), Allocation("states before the norm", 0, states)]
    return [
        *_rows(r, size * embedding.width(a)),
        Allocation("projected rows", positive(a.d_emb) * states, narrow),
        *_positions(a, r, states),
        *times(a.embedding_norm, normed),
    ]


def _rows(r: Run, states) -> Timeline:
    """Rows of all tokens, `states` bytes, which devices that share a vocabulary sum.

    Each masks the tokens whose rows others have; their states are zeros (torch 2.13, `DTensor`:
    `_embedding_ops.py`, `_MaskPartial`, and `_functional_collectives.py`).
    """
    index, mask = (r.batch * r.length * size for size in (INDEX, loss.MASK))
    embedded = Allocation("rows of the token embedding", states)
    divided = [
        Allocation("tokens of other devices", 3 * mask, 2 * mask),
        Allocation("places in its rows", 2 * index, index),
        Allocation("0 instead of places in others", INDEX, INDEX),
        embedded,
        Allocation("places, freed", 0, index),
        Allocation("0 instead of rows of others", bytes_of(r.dtype), bytes_of(r.dtype)),
        Allocation("tokens of other devices, freed", 0, mask),
        *all_reduce(r, states),
    ]
    return [*times(1 - divides(r), [embedded]), *times(divides(r), divided)]


def _positions(a: Fields, r: Run, states) -> Timeline:
    size = bytes_of(r.dtype)
    rows = size * r.length * a.d_model
    if a.position == "learned":
        index = INDEX * r.length
        return [
            Allocation("positions", index),
            Allocation("position embedding", index + rows, index),
            Allocation("sum with the positions", states, states + rows),
            Allocation("positions freed", 0, index),
        ]
    if a.position == "sinusoidal":
        angles, exact = ANGLE * r.length * ceil_div(a.d_model, 2), ANGLE * r.length * a.d_model
        cast = int(size != ANGLE)
        return [
            Allocation("sinusoids", 3 * angles + exact, 2 * angles),
            Allocation("sinusoids in the run's dtype", cast * rows, cast * exact + angles),
            Allocation("sum with the positions", states, states + rows),
        ]
    return []
