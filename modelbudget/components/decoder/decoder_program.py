"""The decoder as a program: embedding, layers, final norm, head."""

from itertools import chain, cycle, islice, repeat
from typing import Any

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import parts_of_length
from modelbudget.common.attributes import with_attributes
from modelbudget.components import embedding, multi_token_prediction, norm, rope
from modelbudget.components import layer_program as layer
from modelbudget.components.attention.attention_fields import PLAIN
from modelbudget.components.position import seen_keys
from modelbudget.operations.attention_kernels import zero_where
from modelbudget.operations.elementwise import dropout, without_gradient
from modelbudget.operations.part import make_group, make_part
from modelbudget.operations.tape import Active, Tensor, empty


def program(a: Fields, r: Run, is_first: bool = True, is_last: bool = True):
    """Tokens (batch, length) to logits (batch, length, n_vocab).

    A stage of a pipeline that is not the first reads states (batch, length, d_model), and one that
    is not the last returns them; it has no embedding, or neither final norm nor head.
    """
    mixers = a.mixers.split()
    embed: Any = None
    if is_first:
        embed = make_group(make_part, "embedding", embedding.program, a, r)
    mlps = chain(repeat("mlp", a.n_dense_layer), cycle(a.mlps.split()))
    patterns = list(islice(zip(cycle(a.mixers.split()), mlps, strict=False), a.n_layer))
    layers = []
    for number, names in enumerate(patterns):
        Active.tape.layer = number
        layers.append(make_group(make_part, "layer", layer.program, a, r, *names))
    ahead = []
    with Active.tape.without_caches():  # inference leaves them out
        for number in range(a.n_mtp_layer):
            Active.tape.layer = a.n_layer + number
            names = mixers[-1], a.mlps.split()[-1]
            ahead.append(make_part("mtp", multi_token_prediction.program, a, r, *names))
    Active.tape.layer = None
    embedding_norm = final_norm = None
    head: Any = None
    if a.embedding_norm and is_first:
        embedding_norm = make_group(norm.make, "norm.embedding", a, r)
    if a.final_norm and is_last:
        final_norm = make_group(norm.make, "norm.final", a, r)
    if is_last:
        token = embed and embed.token
        head = make_group(make_part, "head", embedding.head_program, a, r, token)
    d_rotary = (a.d_rotary or a.d_head) if a.position == "rotary" else 0
    windows = dict.fromkeys(PLAIN, 0) | {"sliding_attention": a.window}
    attends = windows.keys() & {mixer for mixer, _ in patterns}
    shares_tables = d_rotary and r.rope_tables == "model" and attends
    # As they are used, and as they were before any scaling.
    frequencies = empty((2, -(-d_rotary // 2)), "float32") if shares_tables else None
    gives_places = d_rotary and r.rope_tables == "complex" and attends
    has_dropout = r.dropout and r.dropout_in == "model"
    drop = make_part("dropout", lambda: lambda x: dropout(x, has_dropout, r.backend))

    def forward(tokens):
        return states(tokens) if head is None else head(states(tokens))

    def states(tokens):
        """Return the states (batch, length, d_model) that the head reads."""
        x, *_live = stream(tokens)  # live until the states are there
        return normed(x)

    def logits_ahead(tokens):
        """Yield the logits of the next token, and of the tokens that follow it."""
        x, masks, bias, rotation, _live = stream(tokens)
        yield head(normed(x))
        for number, part in enumerate(ahead):
            Active.tape.layer = a.n_layer + number
            mask = masks.get(windows.get(mixers[-1], -1), bias)
            x = part(x, embed(without_gradient(tokens)), mask, rotation)
            Active.tape.layer = None
            yield head(part.final(x))

    def normed(x):
        return x if final_norm is None else final_norm(x)

    def stream(tokens):
        """Return what the last layer returns, and what else is live."""
        tape = Active.tape
        summands = [] if r.embeddings == "held" else None
        x = tokens if embed is None else drop(embed(tokens, summands))
        if embedding_norm is not None:
            x = embedding_norm(x)
        bias, rotation = embed and embed.bias(x), None
        # Of states that a stage receives, a device may have a part of the length.
        length = tokens.shape[1] * (parts_of_length(r) if embed is None else 1)
        if gives_places:
            rotation = (rope.positions(tokens.shape[0], length),)
        elif frequencies is not None:
            dtype = x.dtype if r.rope_dtype == "dtype" else "float32"
            rotation = rope.tables_of_model(length, frequencies, dtype)
        masks = {}
        if r.attention_kernel == "written_out":
            masks = masks_of_sequences({windows[name] for name in mixers if name in windows}, x)
        for number, (mixer, _) in enumerate(patterns):
            tape.layer = number
            x = layers[number](x, masks.get(windows.get(mixer, -1), bias), rotation)
        tape.layer = None
        return x, masks, bias, rotation, summands

    def next_token(tokens, last):
        """Return the logits of the last token, whose states `last` takes of all."""
        x = states(tokens)  # live with its copy
        return head(last(x))

    ahead_of_next = logits_ahead if ahead else None
    return with_attributes(
        forward, states=states, head=head, next_token=next_token, logits_ahead=ahead_of_next
    )


def masks_of_sequences(windows: set, x: Tensor) -> dict:
    """Return masks (batch, 1, length, n_key) by window, each in a tuple."""
    batch, length, _ = x.shape
    of_caches = Active.tape.cache_length
    masks = {}
    for window in sorted(windows):
        n_key = length if of_caches is None else of_caches[1]
        if window and length != n_key:
            n_key = min(n_key, window)  # those of a new token that a cache keeps
        is_seen = seen_keys(length, window, n_key).expand((batch, 1, length, n_key))
        zero = empty((), x.dtype)
        masks[window] = (zero_where(is_seen, x.dtype),)
    return masks
