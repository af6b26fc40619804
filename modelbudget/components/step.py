"""The largest number of bytes that live at one moment of a training step.

The backward pass is told node by node, last computed first: what each allocates while it runs, and
what is freed when it has run: the gradient that came in, and what forward saved for it. Live bytes
are the running sum. Layers are alike, so from one to the next live bytes change by the same
amount, and the largest number is met in the first or in the last of them.
"""

from modelbudget.components import attention, embedding, norm
from modelbudget.operations import largest, positive
from modelbudget.run import bytes_of, exact_bytes, tokens

Node = tuple
"""Bytes allocated while it runs, bytes freed when it has run."""


def covered(a, r):
    """Plain layers, alike, normalised before each part or once for both parallel ones; attention
    that never writes its scores out, or does so in the states' own precision, for as many keys as
    queries, unturned and no wider than the states.
    """
    words = (
        a.mixers == "attention"
        and a.mlps == "mlp"
        and a.norm_placement == "pre"
        and a.qk_norm == "none"
        and r.recompute == "none"
        and (a.norm == "layernorm" or r.kernels == "gpu")
    )
    plain = (1 - positive(a.d_emb)) * (1 - positive(a.d_rotary)) * (1 - r.dropout)
    plain *= 1 - a.parallel * (1 - a.shared_norm)
    if r.attention == "math":
        words = words and a.position != "rotary" and bytes_of(r.dtype) == exact_bytes(r.dtype)
        plain *= 1 - positive(a.n_head - a.n_kv_head)
        plain *= 1 - positive(a.n_head * a.d_head - a.d_model)
    return int(words) * plain


def forward_backward(a, r, before):
    """The peak of forward, loss and backward, where `before` bytes live when backward begins.

    The first candidate is the loss's own: the gradient of the logarithms of probabilities, and
    that of the logits, beside the logarithms. Forward never needs more, where `covered`.
    """
    logits = bytes_of(r.dtype) * tokens(r) * embedding.rows(a)
    states = _states(a, r)
    table = bytes_of(r.dtype) * embedding.token(a)
    one_norm = _norm(a, r)
    head = (table + bytes_of(r.dtype) * a.head_bias * embedding.rows(a) + states, logits + states)
    peaks, live = _run(before, [head, _times(a.final_norm, one_norm)])
    layer = _layer(a, r)
    change = sum(allocated - freed for allocated, freed in layer)
    first, _ = _run(live, layer)
    last, live = _run(live + (a.n_layer - 1) * change, layer)
    ends, _ = _run(live, _embedding(a, r, table, states, one_norm))
    return largest(before + 2 * logits, *peaks, *first, *last, *ends)


def _run(live, nodes: list[Node]) -> tuple[list, object]:
    """Live bytes while each node runs, and after all of them."""
    peaks = []
    for allocated, freed in nodes:
        peaks.append(live + allocated)
        live = live + allocated - freed
    return peaks, live


def _times(switch, node: Node) -> Node:
    allocated, freed = node
    return switch * allocated, switch * freed


def _states(a, r):
    return bytes_of(r.dtype) * tokens(r) * a.d_model


def _norm(a, r) -> Node:
    """Gradients of input, scale and shift."""
    states = _states(a, r)
    return states + bytes_of(r.dtype) * norm.parameters(a), states + norm.saved(a, r)


def _sum(a, r) -> Node:
    """Two gradients of the same states are added up."""
    states = _states(a, r)
    return states, 2 * states


def _layer(a, r) -> list[Node]:
    after = [_norm(a, r), _sum(a, r)]
    apart = [_times(1 - a.parallel, node) for node in after]
    return [*_mlp(a, r), *apart, *_attention(a, r), *after]


def _mlp(a, r) -> list[Node]:
    """Down; the gate's product; up, where there is a gate; the bend; the first projection."""
    size, states = bytes_of(r.dtype), _states(a, r)
    hidden = size * tokens(r) * a.d_ff
    matrix = size * a.d_model * a.d_ff
    projection = matrix + size * a.up_bias * a.d_ff + states
    relu = int(a.activation == "relu")  # keeps its value, which down or the product reads too
    return [
        (matrix + size * a.down_bias * a.d_model + hidden, (1 - relu * (1 - a.gated)) * hidden),
        (a.gated * 2 * hidden, a.gated * (3 - relu) * hidden),
        (a.gated * projection, a.gated * hidden),
        (hidden, 2 * hidden),
        (projection, hidden + (1 - a.parallel) * states),
        (a.gated * states, a.gated * 2 * states),
    ]


def _attention(a, r) -> list[Node]:
    """Output, core, rotation, and each projection; what lies head by head is copied before it."""
    size, states = bytes_of(r.dtype), _states(a, r)
    query, key = (size * tokens(r) * n * a.d_head for n in (a.n_head, a.n_kv_head))
    by_head = positive(a.n_head - 1) * positive(r.length - 1)
    rotary = int(a.position == "rotary")
    of_output = size * (a.n_head * a.d_head * a.d_model + a.output_bias * a.d_model)
    if r.attention == "math":
        copied = of_values = by_head
        core = _math(a, r, query, positive(r.batch - 1) * by_head)
        read = query
    else:
        copied, of_values = rotary * by_head, 0
        core = [(query + 2 * key, query + attention.saved(a, r)["core"])]
        read = copied * query
    turned = size * r.length * a.d_head
    rotation = [(2 * n * rotary, (2 * n + turned) * rotary) for n in (key, query)]
    added = _sum(a, r)
    return [
        (of_output + query, read),
        *core,
        *rotation,
        *_projection(a, r, a.n_kv_head, a.value_bias, of_values, 0),
        _times(a.parallel, added),
        *_projection(a, r, a.n_kv_head, a.key_bias, copied, 0),
        added,
        *_projection(a, r, a.n_head, a.query_bias, copied, states),
        added,
    ]


def _projection(a, r, n_head, bias, copied, saved) -> list[Node]:
    """The gradient of the heads, copied or not, gives those of a matrix and of the states."""
    size = bytes_of(r.dtype)
    heads = size * tokens(r) * n_head * a.d_head
    gradients = size * n_head * a.d_head * (a.d_model + bias) + _states(a, r)
    return [(copied * heads, copied * heads), (gradients, heads + saved)]


def _math(a, r, heads, copied) -> list[Node]:
    """Scores by values; softmax; queries by keys; and the scale of both."""
    scores = exact_bytes(r.dtype) * r.batch * a.n_head * r.length * r.length
    return [
        (copied * heads, copied * heads),
        (heads + scores, 2 * heads),
        (scores, 2 * scores),
        (2 * heads, scores + 2 * heads),
        (heads, heads),
    ]


def _embedding(a, r, table, states, one_norm) -> list[Node]:
    """Norm; positions, summed over the batch; words; and with a tied head the sum of both its
    gradients, which stays beside them until it is made.
    """
    size = bytes_of(r.dtype)
    learned = int(a.position == "learned")
    places = learned * size * r.length * a.d_model
    rows = size * embedding.position(a)
    return [
        _times(a.embedding_norm, one_norm),
        (places, 0),
        (rows, places + learned * embedding.INDEX * r.length),
        (table, states),
        (a.tied * table, a.tied * 2 * table),
    ]


def optimizer(a, r, parameters):
    """What an optimizer's step needs beside all that it works on: AdamW's root of the second
    moment, for all parameters at once or for each in turn.

    In turn, the root is divided, which makes it two, and the one before is still there.
    """
    if r.optimizer != "adamw":
        return 0
    exact = bytes_of(r.dtype) + r.master_weights * (exact_bytes(r.dtype) - bytes_of(r.dtype))
    needs, before = [], 0
    for size, is_there in _tensors(a):
        needs.append(is_there * 2 * size + before)
        before = is_there * size + (1 - is_there) * before
    return exact * (r.foreach * parameters + (1 - r.foreach) * largest(*needs))


def _tensors(a) -> list[tuple]:
    """Numbers in each tensor, in the order in which modules hold them, and whether it is there. Of
    several layers two tell all neighbours.
    """
    layer = [*_attention_tensors(a), *_mlp_tensors(a), *_norm_tensors(a, 1)]
    layer += _norm_tensors(a, 1 - a.parallel)
    return [
        (embedding.token(a), 1),
        (embedding.position(a), int(a.position == "learned")),
        *layer,
        *((size, positive(a.n_layer - 1) * is_there) for size, is_there in layer),
        *_norm_tensors(a, a.embedding_norm),
        *_norm_tensors(a, a.final_norm),
        (embedding.token(a), 1 - a.tied),
        (embedding.rows(a), a.head_bias),
    ]


def _attention_tensors(a) -> list[tuple]:
    query, key = a.n_head * a.d_head, a.n_kv_head * a.d_head
    return [
        (a.d_model * query, 1),
        (query, a.query_bias),
        (a.d_model * key, 1),
        (key, a.key_bias),
        (a.d_model * key, 1),
        (key, a.value_bias),
        (query * a.d_model, 1),
        (a.d_model, a.output_bias),
    ]


def _mlp_tensors(a) -> list[tuple]:
    matrix = a.d_model * a.d_ff
    return [
        (matrix, a.gated),
        (a.d_ff, a.gated * a.up_bias),
        (matrix, 1),
        (a.d_ff, a.up_bias),
        (matrix, 1),
        (a.d_model, a.down_bias),
    ]


def _norm_tensors(a, is_there) -> list[tuple]:
    return [(a.d_model, is_there * a.norm_scale), (a.d_model, is_there * a.norm_bias)]
