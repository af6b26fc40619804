"""Token and position embeddings, and the LM head."""

from typing import Literal

from modelbudget.architecture.arithmetic import ceil_div, largest, positive
from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import (
    INDEX,
    bytes_of,
    divides,
    fuses_gradients,
    is_sharded,
    of_states,
    parts_of_length,
    stored,
    tokens,
)
from modelbudget.components import loss, norm, vocabulary_parallel
from modelbudget.components.position import alibi, buckets, causal_bias, sinusoids
from modelbudget.components.rope import ANGLE
from modelbudget.memory.parameter_tensors import Tensor, matrix, vector
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    all_gather,
    all_reduce,
    copied_in_order,
    times,
)
from modelbudget.memory.trained_model import TrainedModel
from modelbudget.operations.autograd import make_leaf
from modelbudget.operations.elementwise import add, div, mul, tanh, to, without_gradient
from modelbudget.operations.joining import UNSORTED, sorted_rows_bytes
from modelbudget.operations.joining import embedding as take_rows
from modelbudget.operations.linear_layer import (
    make_linear,
    product_of,
    stored_parameters,
    stored_product,
)
from modelbudget.operations.part import make_part, parameter
from modelbudget.operations.products import linear
from modelbudget.operations.tape import Active, empty
from modelbudget.operations.tape import Tensor as ProgramTensor


class VocabularyFields(Architecture):
    n_vocab: Count
    vocab_multiple: Count = 1


class TokenFields(VocabularyFields):
    d_model: Count


class FactorisedFields(TokenFields):
    d_emb: Size = 0


class InputFields(FactorisedFields):
    n_input_token: Size = 0


class LearnedPositionFields(Architecture):
    """For families with a `position` of which one kind is learned."""

    n_ctx: Count = 1024
    position_offset: Size = 0


class PositionFields(LearnedPositionFields):
    position: Literal["none", "learned", "sinusoidal", "rotary", "alibi", "buckets", "relative"] = (
        "learned"
    )
    n_bucket: Count = 32
    d_rotary: Size = 0


class HeadFields(TrainedModel):
    tied: bool = True
    head_bias: bool = False


def rows(a: Fields):
    """Count the rows of the token embedding: the vocabulary and its padding.

    Padding: `make_vocab_size_divisible_by` in Megatron's code.
    """
    return a.vocab_multiple * ceil_div(a.n_vocab, a.vocab_multiple)


def token(a: Fields, width=None):
    """Parameters of the token embedding: one row of `width` (d_model) for each token."""
    return rows(a) * (a.d_model if width is None else width)


def table(a: Fields):
    """Parameters of a decoder's token embedding: the head's rows, and those that it does not have.

    transformers, models/moshi/modeling_moshi.py and models/mllama/modeling_mllama.py:
    `embed_tokens` of `MoshiModel` and `MllamaTextModel`.
    """
    return (rows(a) + a.n_input_token) * width(a)


def head(a: Fields, width=None):
    """Count the parameters of the LM head.

    A tied head owns no matrix (Press & Wolf 2017); its bias, if any, is its own.
    """
    return (1 - a.tied) * token(a, width) + a.head_bias * rows(a)


def width(a: Fields):
    """Channels of a row of the token embedding."""
    return a.d_emb + (1 - positive(a.d_emb)) * a.d_model


def factorised(a: Fields) -> dict:
    """Count the parameters of token embedding, LM head and their projections.

    Embedding and head have width d_emb; projections lead to d_model and back (Lan et al. 2020,
    §3.1; both projections: OPT-350M). Not factorised, both are d_model wide.
    """
    projection = a.d_emb * a.d_model
    return {
        "embedding.token": table(a),
        "embedding.projection": projection,
        "head": head(a, width(a)),
        "head.projection": projection,
    }


def learned(a: Fields, width):
    """Count the parameters of learned positions: one row of `width` for each position.

    Vaswani et al. 2017, §3.5. Rows before the first position are included; RoBERTa and OPT leave
    them unused.
    """
    return int(a.position == "learned") * (a.n_ctx + a.position_offset) * width


def position(a: Fields):
    """Count the parameters of the position embedding.

    Learned positions, or T5's relative position bias: one number for each head and distance bucket
    (Raffel et al. 2020, §2.1).
    """
    return learned(a, a.d_model) + int(a.position == "buckets") * a.n_bucket * a.n_head


def tensors(a: Fields) -> list[Tensor]:
    """Parameter tensors of the embedding, in the order of the module."""
    is_learned = a.position == "learned"
    has_table = int(a.position in ("learned", "buckets"))
    places = a.n_ctx + a.position_offset, a.d_model
    return [
        matrix("embedding.token", rows(a) + a.n_input_token, width(a)),
        matrix("embedding.projection", a.d_model, a.d_emb, positive(a.d_emb)),
        Tensor(
            "embedding.position",
            position(a),
            has_table,
            places if is_learned else None,
            dims=places if is_learned else None,
        ),
    ]


def head_tensors(a: Fields) -> list[Tensor]:
    """Parameter tensors of the head, in the order of the module; a tied head has no matrix."""
    return [
        matrix("head", rows(a), width(a), 1 - a.tied),
        vector("head", rows(a), a.head_bias),
        matrix("head.projection", a.d_emb, a.d_model, positive(a.d_emb)),
    ]


def saved(a: Fields, r: Run) -> dict:
    """Return the bytes saved for backward by embedding, LM head and loss.

    The indices of rows of embeddings, and the inputs of head and projections.
    """
    size, n = bytes_of(r.dtype), tokens(r)
    return {
        "embedding.token": INDEX * n,
        "embedding.position": _position_indices(a, r),
        "embedding.projection": size * _tokens_projected(a, r) * a.d_emb,
        "head.projection": positive(a.d_emb) * size * tokens(of_states(r)) * a.d_model,
        "head": size * n * width(a),
        "loss": loss.saved(r, rows(a)),
    }


def _tokens_projected(a: Fields, r: Run):
    """Tokens whose embedding a device projects: all, if positions are added to them afterwards."""
    return tokens(r if a.position in ("learned", "sinusoidal") else of_states(r))


def _position_indices(a: Fields, r: Run):
    """Bytes of the indices of learned positions, or of the bucket of each pair of tokens."""
    n = {"learned": r.length, "buckets": r.length * r.length}.get(a.position, 0)
    return INDEX * n


def held_apart(a: Fields, r: Run):
    """Bytes of embeddings that are held as local variables and are not the first layer's input.

    That of tokens, where positions are added to it, and that of positions. A norm after it saves
    it, or leaves a copy in its place.
    """
    if r.embeddings == "freed":
        return 0
    size, added = bytes_of(r.dtype), int(a.position in ("learned", "sinusoidal"))
    copied = (1 - added) * a.embedding_norm * norm.copies_input(a, r)
    return size * a.d_model * ((added + copied) * tokens(r) + added * r.length)


def is_held_input(a: Fields, r: Run):
    """1 where the first layer's input is an embedding that is held as a local variable."""
    added = int(a.position in ("learned", "sinusoidal"))
    return int(r.embeddings == "held") * (1 - added) * (1 - a.embedding_norm)


def saved_after_layers(a: Fields, r: Run):
    """Bytes saved by final norm, head and loss, and what else is live, without given targets."""
    by_part, of_targets = saved(a, r), INDEX * tokens(r)
    of_head = (
        by_part["head.projection"]
        + by_part["head"]
        + by_part["loss"]
        + loss.held(r, rows(a))
        - of_targets
    )
    return a.final_norm * norm.saved(a, of_states(r)) + of_head


def final_norm(a: Fields, r: Run, others):
    """Return the bytes live at the end of the final norm.

    In addition to those live when backward begins. `others`: bytes that are then live, too. A norm
    that copies its input leaves it live.
    """
    s = of_states(r)
    states = bytes_of(r.dtype) * tokens(s) * a.d_model
    of_norm = norm.saved(a, s) + norm.copies_input(a, r) * states
    normed = a.final_norm * (of_norm + norm.forward_temporaries(a, s)) + states
    return normed + others - saved_after_layers(a, r)


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
        "head": 2 * tokens(r) * width(a) * rows(a),
    }


def head_backward(a: Fields, r: Run) -> Timeline:
    """Loss, head, its projection, the last norm."""
    size, n = bytes_of(r.dtype), tokens(r)
    states, logits, read = (size * n * m for m in (a.d_model, rows(a), width(a)))
    weight = size * token(a, width(a))
    bias = size * a.head_bias * rows(a)
    of_projection, of_head = size * a.d_emb * a.d_model, (1 - a.tied) * weight + bias
    projection = [
        Allocation("head projection gradients", of_projection + states, read + states),
        Allocation("head projection gradients done", gradients=of_projection),
    ]
    return [
        *loss.backward(r, rows(a)),
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
    of_table, is_learned = size * table(a), int(a.position == "learned")
    factorised = positive(a.d_emb)
    of_positions, of_rows = is_learned * size * r.length * a.d_model, size * position(a)
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
    unread = factorised * narrow + (1 - factorised) * states
    width = factorised * a.d_emb + (1 - factorised) * a.d_model
    beside, of_places = (
        positive(n_taken - UNSORTED)
        * sorted_rows_bytes(n_taken, n_taken + n_rows - largest(n_taken, n_rows), d, size)
        for n_taken, n_rows, d in ((n, a.n_vocab, width), (r.length, a.n_ctx, a.d_model))
    )
    of_places = is_learned * of_places
    return [
        *times(a.embedding_norm, norm.backward(a, s)),
        *all_gather(r, states, freed=1),
        Allocation("gradient of positions summed over the batch", of_positions),
        Allocation(
            "position embedding gradient",
            of_rows + of_places,
            freed + of_places,
            gradients=of_rows,
        ),
        *times(factorised, projection),
        Allocation("token embedding gradient", whole + beside, unread + beside),
        Allocation("copied to the buffer", share, share, gradients=(1 - a.tied) * whole),
        *times(a.tied, _sum_of_gradients(r, of_table, whole)),
    ]


def _sum_of_gradients(r: Run, table, whole) -> Timeline:
    """Sum both gradients of a tied matrix.

    `table`: bytes of a device's share of the matrix, of which it copies its share of the `whole`.
    """
    share = divides(r) * table
    freed = whole + share + table
    return [Allocation("sum with the head's gradient", share + table, freed, gradients=table)]


def forward(a: Fields, r: Run) -> Timeline:
    """Token embedding (projected up from d_emb if factorised), position embedding, norm."""
    size = bytes_of(r.dtype) * r.batch * r.length
    states, narrow = size * a.d_model, size * a.d_emb
    normed = [
        *norm.forward(a, r),
        Allocation("states before the norm", 0, states),
    ]
    return [
        *vocabulary_parallel.rows(r, size * width(a)),
        Allocation("projected rows", positive(a.d_emb) * states, narrow),
        *_positions(a, r, states),
        *times(a.embedding_norm, normed),
    ]


def _positions(a: Fields, r: Run, states) -> Timeline:
    """Position embedding, which is added to the states."""
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


def program(a: Fields, r: Run):
    """Tokens (batch, length) to states (batch, length, d_model)."""
    shape = rows(a) + a.n_input_token, a.d_emb or a.d_model
    token_table = make_part("token", vocabulary_program, r, *shape)
    projection = make_linear("projection", a.d_emb, a.d_model) if a.d_emb else None
    if a.position == "learned":
        position_table = make_part(
            "position", table_program, a.n_ctx + a.position_offset, a.d_model
        )
    elif a.position == "buckets":
        bias_of_buckets = make_part("position", buckets, a.n_bucket, a.n_head)
    # Shards are cast when they are gathered, and a buffer is not.
    scale_buffer = empty((), stored(r).dtype) if r.embedding_scale == "buffer" else None

    def forward(tokens, summands_held: list | None = None):
        """Compute the states; summands are added to `summands_held` if the model holds them."""
        x = token_table(tokens)
        if scale_buffer is not None:
            x = mul(x, scale_buffer)
        if r.input_gradient and not x.needs_gradient and Active.tape.records_graph:
            Active.tape.leaves.append(make_leaf(x))
        if projection is not None:
            x = projection(x)
        summands, length = [x], tokens.shape[1]
        if a.position == "learned":
            places = empty((length,), "int64")
            summands.append(position_table(without_gradient(places)))
        elif a.position == "sinusoidal":
            summands.append(sinusoids(length, a.d_model, x.dtype))
        if summands_held is not None:
            summands_held += summands
        return x if len(summands) == 1 else add(x, summands[1])

    def bias(x):
        """Return the bias of all layers' attention scores: (n_head, length, length), or None."""
        length = parts_of_length(r) * x.shape[1]
        if a.position == "alibi":
            return add(alibi(a.n_head, length, x.dtype), causal_bias(length, x.dtype))
        if a.position == "buckets":
            return add(bias_of_buckets(length), causal_bias(length, x.dtype))
        return None

    # A tied head keeps the frozen table, if a copy of it is trained.
    token = token_table.weight
    forward.token, forward.bias = Active.tape.originals.get(token.name, token), bias
    return forward


def table_program(n, width):
    """Rows (…, width) of a table of n rows, by their numbers (…)."""
    weight = parameter("weight", n, width)

    def forward(places):
        return take_rows(weight, places)

    forward.weight = weight
    return forward


def vocabulary_program(r: Run, n, width):
    """Rows (…, width) in the run's dtype, of a table that may be stored in another.

    int8: all of the table is dequantised first (torchao 0.18, `IntxUnpackedToInt8Tensor`).
    """
    if r.vocabulary_dtype == "dtype":
        return table_program(n, width)
    if r.vocabulary_dtype != "int8":
        weight = parameter("weight", n, width, dtype=r.vocabulary_dtype)
    else:
        of_row = width + bytes_of(r.dtype) + 1  # int8 numbers, a scale, an int8 zero point
        weight = parameter("weight", n, width, is_trained=False, n_bytes=n * of_row)

    def forward(places):
        if r.vocabulary_dtype != "int8":
            return to(take_rows(weight, places), r.dtype)
        table, zero_points = empty((n, width)), empty((n, 1))
        table = empty((n, width))  # less the zero points
        del zero_points
        table = empty((n, width))  # times the scales
        return take_rows(table, places)

    forward.weight = weight
    return forward


def head_program(a: Fields, r: Run, token: ProgramTensor, width=None):
    """States (batch, length, d_model) to logits (batch, length, n_vocab), `token` if it is tied.

    `width`: channels of the states, where something else has projected them.
    """
    d_emb = getattr(a, "d_emb", 0) if width is None else 0
    adapter, weight_format = Active.tape.adapter, Active.tape.weight_format
    shape, product = (rows(a), width or d_emb or a.d_model), linear
    is_cast = r.vocabulary_dtype not in ("dtype", "int8")
    dtype = r.vocabulary_dtype if is_cast else None
    path, (n, width_of_head) = Active.tape.scope, shape
    if weight_format and not a.tied and weight_format.stores(path, width_of_head, n):
        weight, bias = stored_parameters(weight_format, shape, a.head_bias)
        product = stored_product(weight_format, weight)
    else:
        has_copy = a.tied and adapter is not None and adapter.copies("head")
        weight = token if a.tied else parameter("weight", *shape, dtype=dtype)
        if has_copy:
            weight = parameter("weight", *shape, is_adapter=True, dtype=dtype)
        bias = parameter("bias", rows(a)) if a.head_bias else None
    is_stored = product is not linear
    if not is_stored:
        product = product_of(weight, bool(fuses_gradients(r)))
    projection = make_linear("projection", a.d_model, d_emb) if d_emb else None

    def forward(x):
        if projection is not None:
            x = projection(x)
        if is_cast and not is_stored:
            cast = None if bias is None else to(bias, weight.dtype)
            logits = product(to(x, weight.dtype), weight, cast)
        else:
            logits = product(x, weight, bias)
        if r.logit_cap == "tanh":
            logits = div(logits, 30.0)
            logits = tanh(logits)
            logits = mul(logits, 30.0)
        return logits

    forward.weight = weight
    forward.is_product = (
        product is linear and not is_cast and bias is projection is None and r.logit_cap == "none"
    )
    return forward
