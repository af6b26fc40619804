"""Token and position embeddings, and the LM head."""

from typing import Literal

from modelbudget.architecture.arithmetic import ceil_div, positive
from modelbudget.architecture.base import Architecture, Count, Size
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import bytes_of, fuses_gradients, parts_of_length
from modelbudget.common.attributes import with_attributes
from modelbudget.components.position import alibi, buckets, causal_bias, sinusoids
from modelbudget.memory.parameter_tensors import Tensor, matrix, vector
from modelbudget.operations.autograd import make_leaf
from modelbudget.operations.elementwise import without_gradient
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


class HeadFields(Architecture):
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
    """Parameter tensors of the embedding, in the order of the module.

    Factorised, embedding and head have width d_emb; projections lead to d_model and back (Lan et
    al. 2020, §3.1; both projections: OPT-350M).
    """
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
        ),
    ]


def head_tensors(a: Fields) -> list[Tensor]:
    """Parameter tensors of the head, in the order of the module; a tied head has no matrix."""
    return [
        matrix("head", rows(a), width(a), 1 - a.tied),
        vector("head", rows(a), a.head_bias),
        matrix("head.projection", a.d_emb, a.d_model, positive(a.d_emb)),
    ]


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
    scale_buffer = empty((), Active.tape.buffer_dtype) if r.embedding_scale == "buffer" else None

    def forward(tokens, held: list | None = None):
        """Compute the states; `held` receives what they are the sum of, and their positions."""
        x = token_table(tokens)
        if scale_buffer is not None:
            x = x * scale_buffer
        x = as_leaf(r, x)
        if projection is not None:
            x = projection(x)
        summands, length, places = [x], tokens.shape[1], None
        if a.position == "learned":
            places = without_gradient(empty((length,), "int64"))
            if held is not None:
                places = places.unsqueeze(0)  # classes of transformers have those of one sequence
            summands.append(position_table(places))
        elif a.position == "sinusoidal":
            summands.append(sinusoids(length, a.d_model, x.dtype))
        if held is not None:
            held += [*summands, places]
        return x if len(summands) == 1 else x + summands[1]

    def bias(x):
        """Return the bias of all layers' attention scores: (n_head, queries, keys), or None."""
        length, of_caches = parts_of_length(r) * x.shape[1], Active.tape.cache_length
        n_key = length if of_caches is None else of_caches[1]
        if a.position == "alibi":
            bias = alibi(a.n_head, length, x.dtype, n_key)
            return bias + causal_bias(length, x.dtype, n_key=n_key)
        if a.position == "buckets":
            bias = bias_of_buckets(length, n_key)
            return bias + causal_bias(length, x.dtype, n_key=n_key)
        return None

    return with_attributes(forward, token=token_table.weight, bias=bias)


def as_leaf(r: Run, x: ProgramTensor) -> ProgramTensor:
    """Let the backward pass of a run with `input_gradient` go on to states that need none."""
    if r.input_gradient and not x.needs_gradient and Active.tape.records_graph:
        Active.tape.leaves.append(make_leaf(x))
    return x


def token_program(a: Fields, r: Run, width=None):
    """Rows (…, width), or d_model, of the token embedding, by the numbers of tokens (…)."""
    table = table_program(rows(a), a.d_model if width is None else width)

    def forward(tokens):
        return as_leaf(r, table(tokens))

    return with_attributes(forward, weight=table.weight)


def table_program(n, width):
    """Rows (…, width) of a table of n rows, by their numbers (…)."""
    weight = parameter("weight", n, width)

    def forward(places):
        return take_rows(weight, places)

    return with_attributes(forward, weight=weight)


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
            return take_rows(weight, places).to(r.dtype)
        table, zero_points = empty((n, width)), empty((n, 1))
        table = empty((n, width))  # less the zero points
        del zero_points
        table = empty((n, width))  # times the scales
        return take_rows(table, places)

    return with_attributes(forward, weight=weight)


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
        # A tied head keeps the frozen table, if a copy of it is trained.
        token = Active.tape.originals.get(token.name, token) if a.tied else token
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
            cast = None if bias is None else bias.to(weight.dtype)
            logits = product(x.to(weight.dtype), weight, cast)
        else:
            logits = product(x, weight, bias)
        if r.logit_cap == "tanh":
            logits = logits / 30.0
            logits = logits.tanh()
            logits = logits * 30.0
        return logits

    is_product = (
        product is linear and not is_cast and bias is projection is None and r.logit_cap == "none"
    )
    return with_attributes(forward, weight=weight, is_product=is_product)
