"""Causal attention: query, key, value and output projections, with GQA or MQA if wanted."""

from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.base import Count, Parts
from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.fields import Fields, Run
from modelbudget.architecture.layer_pattern import instances
from modelbudget.architecture.operations import ceil_div, largest, positive
from modelbudget.architecture.run_config import (
    INDEX,
    MASKS,
    bytes_of,
    casts,
    computed_again,
    exact_bytes,
    is_sharded,
    one_token,
    products,
    tokens,
    widening,
)
from modelbudget.components import attention_core, norm, rope
from modelbudget.components.contract import ALONE, Place, Values, doubled, valid_if
from modelbudget.components.norm import NormFields
from modelbudget.components.weight_formats import Matrix, numbers_of
from modelbudget.memory.adamw_temporaries import Tensor, linear_tensors, matrix, vector
from modelbudget.memory.timeline import (
    Allocation,
    Timeline,
    accumulate,
    all_reduce,
    casts_backward,
    gradients_done,
    linear_backward,
    times,
)

GROUP = "attention"
SIZES = ()
DIVIDED = ("n_head", "n_kv_head")

DISTANCE = 8 + 1
"""Bytes of the distance from a query to a key (int64), and of whether it is outside the window."""


class AttentionFields(NormFields):
    n_head: Parts = Field(description="query heads")
    n_kv_head: Count = Field(description="key and value heads: n_head, fewer (GQA) or 1 (MQA)")
    d_head: Count = Field(description="width of one head")
    query_bias: bool = False
    key_bias: bool = False
    value_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "shared", "separate", "joint"] = Field(
        "none",
        description="normalises queries and keys: with one scale of d_head that all heads share, "
        "a separate one for each head, or jointly over all heads' channels",
    )
    qk_norm_bias: bool = Field(False, description="the norms of queries and keys add a bias")
    sinks: bool = Field(
        False,
        description="attention sinks: a learned logit per head that absorbs probability (gpt-oss)",
    )

    attention_gate: bool = Field(
        False,
        description="a projection of the states, through a sigmoid, gates the result of attention "
        "before the output projection",
    )

    derived: ClassVar[dict[str, str]] = {"n_kv_head": "n_head", "d_head": "d_model / n_head"}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            "n_head % n_kv_head == 0",
            "n_kv_head = {n_kv_head} does not divide n_head = {n_head}; "
            "each key–value head serves the same number of query heads",
        ),
        Constraint(
            "norm == 'layernorm' and norm_scale and qk_norm != 'none'",
            "qk_norm_bias = true needs norm: layernorm, norm_scale: true and a qk_norm; here "
            "norm: {norm}, norm_scale: {norm_scale}, qk_norm: {qk_norm}",
            when="qk_norm_bias",
        ),
    )


FIELDS = AttentionFields


PACKED = ("query", "key", "value")
"""Components that are one with `projections: packed`."""
PRESENT = "'attention' in {0} or 'sliding_attention' in {0}"
"""Whether a pattern has attention, with a window or without."""
SWITCHES = ("query_bias", "key_bias", "value_bias", "output_bias", "sinks", "attention_gate")
OPTIONS = {
    **{name: f"{name} = true" for name in SWITCHES},
    "qk_norm != 'none'": "qk_norm: {qk_norm}",
    f"position in {MASKS}": "position: {position}",
}
"""Options that only attention has, and how a message names them."""
CONSTRAINTS = (
    *(
        Constraint(
            PRESENT.format("first(mixers, n_layer)"),
            f"{given} needs attention in mixers, which are '{{mixers}}'",
            when=option,
        )
        for option, given in OPTIONS.items()
    ),
    Constraint(
        "position == 'rotary' and d_rotary <= d_head",
        "d_rotary = {d_rotary} needs position: rotary and at most d_head = {d_head} channels; "
        "position: {position}",
        when="d_rotary",
    ),
    *(
        Constraint(
            f"{name} % 2 == 0",
            f"{name} = {{{name}}} is odd; position: rotary rotates pairs of channels",
            when=f"position == 'rotary' and {is_used} and ({PRESENT.format('mixers')})",
        )
        for name, is_used in (("d_rotary", "d_rotary"), ("d_head", "not d_rotary"))
    ),
)


def no_mask_on_scores(a: Fields, r: Run):
    """ALiBi, T5's buckets and relative positions add to the scores."""
    return int(_position(a) not in MASKS)


def math_for_masks(a: Fields, r: Run):
    """1 unless scores that something is added to meet a kernel that never writes them out."""
    return int(_position(a) not in MASKS or r.attention_kernel == "math")


def mask_is_not_saved(a: Fields, r: Run):
    """1 unless checkpointing saves what is added to the scores, which only some layers compute."""
    own = _position(a) == "relative" and r.recompute == "full"
    return int(_position(a) not in MASKS or r.recompute == "none" or own)


def no_sinks(a: Fields, r: Run):
    """Sinks add a key to the scores."""
    return 1 - a.sinks


def _position(a: Fields) -> str:
    """Return the position embedding; families without positions have no such field."""
    return getattr(a, "position", "none")


def _rope(a: Fields) -> int:
    return int(_position(a) == "rotary")


def _d_rotary(a: Fields):
    if not _rope(a):
        return 0
    return a.d_rotary + (1 - positive(a.d_rotary)) * a.d_head


def is_written_out(r: Run) -> int:
    """1 where attention is one operation at a time, with masks that the model makes."""
    return int(r.attention_kernel == "written_out")


def is_not_written_out(a: Fields, r: Run):
    """Attention that is written out has no timeline of inference."""
    return 1 - is_written_out(r)


def model_mask(r: Run):
    """Bytes of a mask that the model makes once, for each sequence."""
    return is_written_out(r) * bytes_of(r.dtype) * r.batch * r.length * r.length


def model_masks(a: Fields, r: Run):
    """Bytes of such masks: one for all tokens and one for a window, as far as layers need them."""
    return len({*a.mixers.split()} & {"attention", "sliding_attention"}) * model_mask(r)


def own_tables(a: Fields, r: Run) -> int:
    """1 where each layer makes the tables of RoPE."""
    return int(r.rope_tables == "layer")


def _is_complex(a: Fields, r: Run) -> int:
    """1 where RoPE multiplies complex numbers."""
    return _rope(a) * int(r.rope_tables == "complex")


def rope_is_real(a: Fields, r: Run):
    """RoPE is not a product of complex numbers."""
    return 1 - _is_complex(a, r)


def complex_is_not_cast(a: Fields, r: Run):
    """With autocast, RoPE over complex numbers has no formula."""
    return 1 - casts(r) * _is_complex(a, r)


def _rope_by_head(a: Fields, r: Run) -> int:
    """1 where RoPE ends with a concatenation, whose result is contiguous per head."""
    with_tables_of_model = r.rope_tables == "model" and r.rope_layout == "head"
    return _rope(a) * int(r.rope_tables == "layer" or with_tables_of_model)


def rotates_whole_heads(a: Fields, r: Run):
    """With tables of the model or complex numbers, RoPE rotates all channels of a head."""
    in_part = positive(a.d_head - _d_rotary(a))
    return 1 - _rope(a) * (1 - own_tables(a, r)) * in_part


def packs(a: Fields, r: Run):
    """Packed, the projections have a bias each or none has, and queries and keys have no norms."""
    biases = a.query_bias, a.key_bias, a.value_bias
    equal = 1 - positive(sum(biases)) + biases[0] * biases[1] * biases[2]
    return 1 - _packed(r) * (1 - equal * int(a.qk_norm == "none"))


def autocast_is_known(a: Fields, r: Run):
    """With autocast, RoPE's own tables have the dtype of products unless norms come before.

    Masks on scores, and what selective checkpointing saves, have a dtype that is not known here.
    """
    normed = int(a.qk_norm != "none") * _rope(a) * own_tables(a, r)
    plain = int(_position(a) not in MASKS and r.recompute != "selective")
    return 1 - casts(r) * (1 - (1 - normed) * plain)


def copies_are_made(a: Fields, r: Run):
    """Not with a single token, whose query, key and value are contiguous as they are."""
    return 1 - int(r.projections == "copied") * (1 - positive(tokens(r) - 1))


def is_not_copied(a: Fields, r: Run):
    """Query, key and value are no copies."""
    return int(r.projections != "copied")


def single_tokens_are_viewed(a: Fields, r: Run):
    """Products in the dtype copy packed values of single tokens: they stand between sequences."""
    p = products(r)
    in_dtype = is_written_out(r) or bytes_of(p.dtype) == exact_bytes(p.dtype)
    copies = int(r.attention_kernel in ("math", "written_out") and in_dtype)
    single = (1 - positive(r.length - 1)) * positive(r.batch - 1) * positive(a.n_head - 1)
    return 1 - _shares_storage(r) * copies * single


def heads_are_not_scaled_exactly(a: Fields, r: Run):
    """Norms of queries and keys do not multiply by their scale in single precision."""
    return 1 - norm.scales_exactly(a, r) * int(a.qk_norm != "none")


def keys_are_not_repeated(a: Fields, r: Run):
    """Packed without RoPE, attention saves all three parts or copies of all three, not of some."""
    return 1 - _shares_storage(r) * (1 - _rope(a)) * _repeats(a, r)


def _repeats(a: Fields, r: Run):
    """1 where attention saves keys and values repeated for each query head, as computed."""
    repeats = r.attention_kernel in ("efficient", "written_out")
    return int(repeats) * positive(a.n_head - a.n_kv_head)


def parameters(a: Fields) -> Values:
    """Four projections (Vaswani et al. 2017, §3.2.2; grouped heads: Ainslie et al. 2023, §2.2).

    Queries and output have n_head heads of d_head, keys and values n_kv_head of them. One matrix
    or three makes no difference to the count. Norms of queries and keys: Dehghani et al. 2023,
    §2 (a scale shared by the heads: Qwen 3; one for each head: StableLM 2 12B; over all heads:
    OLMo 2). Sinks: gpt-oss model card. Gate: Qiu et al. 2025 (Gated Attention), §2.2; Qwen3-Next's
    code has it in the query's matrix.
    """
    d_query = a.n_head * a.d_head
    d_key = a.n_kv_head * a.d_head
    of_query = {"none": 0, "shared": a.d_head, "separate": d_query, "joint": d_query}
    of_key = {"none": 0, "shared": a.d_head, "separate": d_key, "joint": d_key}
    return {
        "query": a.d_model * d_query + a.query_bias * d_query,
        "gate": a.attention_gate * (a.d_model * d_query + a.query_bias * d_query),
        "key": a.d_model * d_key + a.key_bias * d_key,
        "value": a.d_model * d_key + a.value_bias * d_key,
        "output": d_query * a.d_model + a.output_bias * a.d_model,
        "query_norm": (a.norm_scale + a.qk_norm_bias) * of_query[a.qk_norm],
        "key_norm": (a.norm_scale + a.qk_norm_bias) * of_key[a.qk_norm],
        "sinks": a.sinks * a.n_head,
        **_relative_positions(a),
    }


def _relative_positions(a: Fields) -> Values:
    """Count the parameters of Transformer-XL's relative positions, if the family has them.

    A fifth matrix, from sinusoids of the distance to keys, and two query biases, u for content and
    v for position (Dai et al. 2019, §3.3).
    """
    if _position(a) != "relative":
        return {}
    d_query = a.n_head * a.d_head
    return {
        "position": a.d_model * d_query,
        "content_bias": d_query,
        "position_bias": d_query,
    }


def shards_are_separate(a: Fields, r: Run):
    """Sharded, query, key and value are three matrices."""
    return 1 - is_sharded(r) * _packed(r)


@valid_if(shards_are_separate)
def tensors(a: Fields) -> list[Tensor]:
    """Biases of queries and sinks; weights and biases of the projections; norms; positions."""
    query, key = a.n_head * a.d_head, a.n_kv_head * a.d_head
    relative = int(_position(a) == "relative")
    found = [
        Tensor("content_bias", query, relative),
        Tensor("position_bias", query, relative),
        vector("sinks", a.n_head, a.sinks),
        *linear_tensors("query", a.d_model, query, a.query_bias),
        matrix("gate", query, a.d_model, a.attention_gate),
        vector("gate", query, a.attention_gate * a.query_bias),
        *linear_tensors("key", a.d_model, key, a.key_bias),
        *linear_tensors("value", a.d_model, key, a.value_bias),
        *linear_tensors("output", query, a.d_model, a.output_bias),
    ]
    if a.qk_norm != "none":
        n_query, n_key = (1, 1) if a.qk_norm == "shared" else (a.n_head, a.n_kv_head)
        for name, n in (("query_norm", n_query), ("key_norm", n_key)):
            shape = (a.d_head, 1) if a.qk_norm == "shared" else (n, a.d_head)
            found += [matrix(name, *shape, one) for one in (a.norm_scale, a.qk_norm_bias)]
    return [*found, Tensor("position", a.d_model * query, relative)]


def matrices(a: Fields) -> list[Matrix]:
    """Return the projections."""
    query, key = a.n_head * a.d_head, a.n_kv_head * a.d_head
    return [
        Matrix("query", a.d_model, query),
        Matrix("gate", a.d_model, query, a.attention_gate),
        Matrix("key", a.d_model, key),
        Matrix("value", a.d_model, key),
        Matrix("output", query, a.d_model),
    ]


SAVED_IF = (
    math_for_masks,
    mask_is_not_saved,
    no_sinks,
    rotates_whole_heads,
    packs,
    single_tokens_are_viewed,
    keys_are_not_repeated,
    heads_are_not_scaled_exactly,
    autocast_is_known,
    complex_is_not_cast,
    copies_are_made,
)
"""Conditions of the bytes that are saved."""


@valid_if(*SAVED_IF)
def saved(a: Fields, r: Run, place: Place = ALONE) -> Values:
    """Return the bytes saved for backward by each component.

    The input, which query, key and value share; inputs of the norms of queries and keys; RoPE's
    tables, where they are its own; scaled dot-product attention (`core`); the input of the output
    projection, where it is a copy. A gate saves its value, and the result that it multiplies in
    place of the projection.
    """
    p = products(r)
    by_distance, sinusoids = _saved_by_distance(a, r)
    query = bytes_of(p.dtype) * tokens(r) * a.n_head * a.d_head
    result, gated = attention_core.copied_result(heads(a, r), p), a.attention_gate
    tables = _rope(a) * own_tables(a, r) * 2 * rope.tables(p, _d_rotary(a))
    tables += _is_complex(a, r) * rope.complex_rows(r, a.d_head)
    of_norm = p if norm.is_written_out(a, r) else r
    found = {
        "query": bytes_of(p.dtype) * tokens(r) * a.d_model,
        "query_norm": _saved_by_head_norm(a, of_norm, a.n_head),
        "key_norm": _saved_by_head_norm(a, of_norm, a.n_kv_head),
        "": tables + gated * (query + result) + by_distance,
        "position": sinusoids,
        "core": attention_core.saved(heads(a, r), p),
        "output": result + gated * (query - result),
    }
    cast = _casts(a, r) if casts(r) else {}
    return {name: found.get(name, 0) + cast.get(name, 0) for name in found | cast}


def _casts(a: Fields, r: Run) -> Values:
    """Return the bytes of what autocast copies: each weight, and each input but the query's."""
    size, separate = bytes_of(r.autocast), 1 - _packed(r)
    query, key = (size * a.d_model * n_head * a.d_head for n_head in (a.n_head, a.n_kv_head))
    states = size * tokens(r) * a.d_model
    return {
        "query": query,
        "gate": a.attention_gate * (states + query),
        "key": separate * states + key,
        "value": separate * states + key,
        "output": query,
    }


def _saved_by_distance(a: Fields, r: Run) -> tuple:
    """Return the bytes saved by the scores of relative positions, and by their projection.

    Queries with their bias, and projected distances, repeated for each sequence of several heads;
    the scores, and which of them belongs to which key (Dai et al. 2019, appendix B). The projection
    saves its input, the sinusoids.
    """
    if _position(a) != "relative":
        return 0, 0
    size, query = bytes_of(r.dtype), r.length * a.n_head * a.d_head
    repeated = 1 + positive(a.n_head - 1) * (r.batch - 1)
    scores = (size * r.batch * a.n_head + INDEX) * r.length * r.length
    return size * (r.batch + repeated) * query + scores, size * r.length * a.d_model


def heads(a: Fields, r: Run) -> attention_core.Heads:
    """Return the inputs of scaled dot-product attention.

    Packed, a value is stored with its query and key; these are counted with it unless they are
    inputs of attention themselves.
    """
    copies = r.attention_kernel == "math" and r.recompute != "selective"
    stored = a.d_head
    if _shares_storage(r) and (copies or _rope(a)):
        own = _repeats(a, r) * int(r.attention_kernel == "efficient" and r.recompute != "selective")
        stored += (1 - own) * (ceil_div(a.n_head, a.n_kv_head) + 1) * a.d_head
    by_head = _rope_by_head(a, r)
    together = _shares_storage(r) * (1 - _rope(a))
    return attention_core.Heads(
        a.n_head, a.n_kv_head, a.d_head, a.d_head, stored, by_head, together
    )


def _packed(r: Run) -> int:
    """1 where query, key and value are one matrix product."""
    return int(r.projections != "separate")


def _shares_storage(r: Run) -> int:
    """1 where query, key and value are views of one tensor."""
    return int(r.projections in ("packed", "sliced"))


def _n_rope(a: Fields, r: Run):
    """Count the layers with a RoPE of which the model gives the tables or the positions."""
    if not _rope(a) or own_tables(a, r):
        return 0
    n_layer = instances(a.mixers, a.n_layer)
    return sum(n_layer.get(name, 0) for name in ("attention", "sliding_attention"))


def _shares_tables(a: Fields, r: Run):
    """1 where layers share the tables of RoPE: some of them have attention."""
    return int(r.rope_tables == "model") * positive(_n_rope(a, r))


def model_tables(a: Fields, r: Run):
    """Bytes of the tables of RoPE that all layers share; 0 if each makes its own."""
    return _shares_tables(a, r) * 2 * rope.model_table(r, _d_rotary(a))


def model_frequencies(a: Fields, r: Run):
    """Bytes of the frequencies of such tables, as they are used and before any scaling."""
    return _shares_tables(a, r) * rope.ANGLE * _d_rotary(a)


def model_positions(a: Fields, r: Run, length):
    """Bytes of the positions of `length` tokens, which are live as long as such tables.

    For RoPE over complex numbers, of each sequence.
    """
    n_sequences = r.batch if r.rope_tables == "complex" else 1
    return positive(_n_rope(a, r)) * INDEX * n_sequences * length


def complex_tables(a: Fields, r: Run):
    """Bytes of the buffers of complex numbers of all layers."""
    return int(r.rope_tables == "complex") * _n_rope(a, r) * rope.complex_table(r, a.d_head)


def _saved_by_head_norm(a: Fields, r: Run, n_head):
    if a.qk_norm == "none":
        return 0
    states = bytes_of(r.dtype) * tokens(r) * n_head * a.d_head
    by_norm = norm.saved(a, r, n_head * a.d_head, _vectors(a, tokens(r), n_head))
    return by_norm + _scaled_apart(a, r) * states


def _vectors(a: Fields, n_token, n_head):
    return n_token * (1 if a.qk_norm == "joint" else n_head)


def _scaled_apart(a: Fields, r: Run):
    """1 where the scale is a multiplication of its own after the norm, and saves its input."""
    return int(a.qk_norm == "separate") * (1 - norm.is_composed(a, r)) * a.norm_scale


@valid_if(no_mask_on_scores)
def cache(a: Fields, r: Run) -> Values:
    """Return the bytes of the KV cache: one key and one value for every KV head and token.

    Shazeer 2019, §3; Ainslie et al. 2023, §2.2.
    """
    return {"": bytes_of(r.dtype) * 2 * tokens(r) * a.n_kv_head * a.d_head}


@valid_if(math_for_masks, no_sinks)
def flops(a: Fields, r: Run, products=attention_core.FORWARD_PRODUCTS) -> Values:
    """Count the FLOPs of a forward pass.

    Projections, and scaled dot-product attention (`core`): queries by keys and scores by values,
    2·length² operations a channel each; a causal mask saves none of them here. `products`: twice
    the number of these products.
    """
    n, d_query, d_key = tokens(r), a.n_head * a.d_head, a.n_kv_head * a.d_head
    return {
        "query": 2 * n * a.d_model * d_query,
        "gate": a.attention_gate * 2 * n * a.d_model * d_query,
        "key": 2 * n * a.d_model * d_key,
        "value": 2 * n * a.d_model * d_key,
        "output": 2 * n * d_query * a.d_model,
        "core": products * n * r.length * d_query,
        **_flops_of_distances(a, r),
    }


def _flops_of_distances(a: Fields, r: Run) -> Values:
    """Relative positions project sinusoids and score them (Dai et al. 2019, §3.3)."""
    if _position(a) != "relative":
        return {}
    d_query = a.n_head * a.d_head
    return {
        "position": 2 * r.length * a.d_model * d_query,
        "": 2 * tokens(r) * r.length * d_query,
    }


@valid_if(math_for_masks, no_sinks)
def flops_backward(a: Fields, r: Run) -> Values:
    """Each product twice, for the gradients of both its factors; sinusoids need no gradient."""
    found = doubled(flops(a, r, attention_core.backward_products(r)))
    return found | {"position": _flops_of_distances(a, r).get("position", 0)}


def flops_recomputed(a: Fields, r: Run) -> Values:
    """Count the FLOPs that activation checkpointing repeats.

    Selective: scaled dot-product attention; full: the whole part (Korthikanti et al. 2022, §5).
    """
    if r.recompute == "selective":
        return {"core": flops(a, r, attention_core.recomputed_products(r))["core"]}
    return flops(a, r) if r.recompute == "full" else {}


@valid_if(no_mask_on_scores, no_sinks)
def flops_decode(a: Fields, r: Run) -> Values:
    """Projections of one token; its query meets the keys of all tokens."""
    of_one = flops(a, one_token(r))
    return of_one | {"core": r.length * of_one["core"]}


def cached_casts(a: Fields, r: Run):
    """Bytes of casts of biases, which autocast keeps to the end of the forward pass."""
    size, key = bytes_of(products(r).dtype), a.n_kv_head * a.d_head
    first = a.query_bias * a.n_head * a.d_head + (a.key_bias + a.value_bias) * key
    return size * first + sum(_later_biases(a, size))


def cast_weights(a: Fields, r: Run):
    """Bytes of casts of the projections' matrices."""
    return bytes_of(products(r).dtype) * numbers_of(matrices(a))


def _later_biases(a: Fields, size) -> tuple:
    """Bytes of the biases that are read after queries, keys and values: of gate and output."""
    gate = a.attention_gate * a.query_bias * a.n_head * a.d_head
    return size * gate, size * a.output_bias * a.d_model


def norms_of_heads_are_known(a: Fields, r: Run):
    """With autocast, norms of queries and keys are written out, and multiply by a scale."""
    known = norm.is_written_out(a, r) * a.norm_scale
    return 1 - casts(r) * int(a.qk_norm != "none") * (1 - known)


PEAK_IF = (
    no_mask_on_scores,
    no_sinks,
    rotates_whole_heads,
    packs,
    keys_are_not_repeated,
    heads_are_not_scaled_exactly,
    norms_of_heads_are_known,
    complex_is_not_cast,
    copies_are_made,
)
"""Conditions of the timelines."""


@valid_if(*PEAK_IF)
def forward(a: Fields, r: Run, place: Place, hides=0) -> Timeline:
    """Return the timeline of the forward pass, from the input to the output and all that is saved.

    Projections, norms, RoPE, the mask of a window that hides some scores (`hides` 1), scaled
    dot-product attention, a copy of its result that is contiguous per token, the output projection.
    """
    held, p = saved(a, r), products(r)
    size, n, math = bytes_of(p.dtype), tokens(r), int(r.attention_kernel == "math")
    query, key = (size * n * n_head * a.d_head for n_head in (a.n_head, a.n_kv_head))
    copied = attention_core.result_apart(heads(a, r), p) * query
    of_query, of_key, of_value = attention_core.kept_inputs(heads(a, r), p)
    freed = _inputs_freed(a, p, of_query, of_key, of_value) + math * copied
    mask, distances = (
        attention_core.mask_of_window(r, hides),
        hides * DISTANCE * r.length * r.length,
    )
    of_inputs = casts(r) * sum(held.get(name, 0) for name in PACKED)
    of_gate, of_output = (casts(r) * one for one in _later_biases(a, size))
    cached = casts(r) * cached_casts(a, r) - of_gate - of_output
    weight = casts(r) * size * a.d_model * a.n_head * a.d_head
    cast, normed = _heads_are_cast(a, r) * (query + key), _heads_are_normed(a, r) * (query + key)
    unread = _heads_are_cast(a, r) * ((1 - of_query) * query + (1 - of_key) * key)
    freed += int(r.recompute != "selective") * mask
    joined, copies, shared = query + 2 * key, int(r.projections == "copied"), _shares_storage(r)
    gate = [
        Allocation("gate", casts(r) * held.get("gate", 0) + of_gate + query),
        Allocation("sigmoid", query, query),
        Allocation("gated result", query),
    ]
    return [
        Allocation("casts of states and weights", of_inputs + cached),
        Allocation("query, key, value", joined + held["query_norm"] + held["key_norm"]),
        Allocation("their copies", copies * joined, copies * joined),
        Allocation("normed heads in single precision", normed),
        *_rope_forward(a, r),
        Allocation(
            "query and key before RoPE", 0, _rope(a) * (1 - shared) * (query + key + normed)
        ),
        Allocation("casts of query and key", cast),
        Allocation("mask of the window", 2 * mask + distances, mask + distances),
        *attention_core.forward(heads(a, r), p, hides),
        Allocation("casts of query and key, freed", 0, unread),
        Allocation("result contiguous per token", copied),
        *times(a.attention_gate, gate),
        Allocation(
            "output",
            size * n * a.d_model + weight + of_output,
        ),
        *all_reduce(r, size * n * a.d_model),
        Allocation("inputs of attention", 0, freed - unread + widening(r) * cast),
    ]


@valid_if(*PEAK_IF)
def backward(a: Fields, r: Run, place: Place, hides=0) -> Timeline:
    """Output projection, gate, core, RoPE; then value, key and query, each with its norm.

    `hides`: as in forward.
    """
    held, p = saved(a, r), products(r)
    size, states = bytes_of(p.dtype), bytes_of(p.dtype) * tokens(r) * a.d_model
    query, key = (size * tokens(r) * n_head * a.d_head for n_head in (a.n_head, a.n_kv_head))
    output = size * a.n_head * a.d_head * a.d_model, size * a.output_bias * a.d_model, query
    early = computed_again(r)
    saved_input = states, early * (1 - place.is_first)
    of_states = accumulate(widening(r) * states)
    result, others = attention_core.copied_result(heads(a, r), p), place.others
    gate = [
        Allocation("gated result gradients", 2 * query, query + result),
        Allocation("sigmoid gradient", query, 2 * query),
        *_projection("gate", a, r, a.n_head, a.query_bias, times(others, of_states)),
    ]
    cast = [
        Allocation("query gradient in single precision", widening(r) * query, query),
        Allocation("key gradient in single precision", widening(r) * key, key),
    ]
    return [
        *linear_backward("output", *output, place.given, held["output"], early),
        *casts_backward(r, "output", *output[:2]),
        *gradients_done("output", sum(output[:2])),
        *times(a.attention_gate, gate),
        *attention_core.backward(heads(a, r), p, hides),
        *times(_heads_are_cast(a, r), cast),
        *_rope_backward(a, r),
        *_projections_backward(a, r, others, saved_input),
    ]


def _projections_backward(a: Fields, r: Run, others, saved_input: tuple) -> Timeline:
    """Value, key and query, each with its norm; or their gradients joined, and one product."""
    states = bytes_of(r.dtype) * tokens(r) * a.d_model
    added = times(1 - (1 - others) * (1 - a.attention_gate), accumulate(states))
    n_heads = a.n_head + 2 * a.n_kv_head
    heads, query, key = (
        bytes_of(products(r).dtype) * tokens(r) * n * a.d_head
        for n in (n_heads, a.n_head, a.n_kv_head)
    )
    joined = [Allocation("gradients of query, key and value joined", heads, heads)]
    if r.projections == "sliced":
        joined = [
            Allocation("value gradient in the whole result", heads, key),
            Allocation("key gradient in the whole result", heads, key),
            *accumulate(heads),
            Allocation("query gradient in the whole result", heads, query),
            *accumulate(heads),
        ]
    if _packed(r):
        return [
            *joined,
            *_projection("query, key, value", a, r, n_heads, a.query_bias, added, *saved_input),
        ]
    of_states = accumulate(states)
    return [
        *_projection("value", a, r, a.n_kv_head, a.value_bias, added),
        *_head_norm_backward(a, r, a.n_kv_head),
        *_projection("key", a, r, a.n_kv_head, a.key_bias, of_states),
        *_head_norm_backward(a, r, a.n_head),
        *_projection("query", a, r, a.n_head, a.query_bias, of_states, *saved_input),
    ]


def _heads_are_normed(a: Fields, r: Run) -> int:
    """1 where autocast leaves normed queries and keys in float32."""
    return casts(r) * int(a.qk_norm != "none")


def _heads_are_cast(a: Fields, r: Run) -> int:
    """1 where autocast casts queries and keys once more: norms, or tables of float32, come before.

    These are the tables of the model.
    """
    return max(_heads_are_normed(a, r), casts(r) * _rope(a) * (1 - own_tables(a, r)))


def _inputs_freed(a: Fields, r: Run, of_query, of_key, of_value):
    """Bytes of queries, keys and values that are freed after attention, which saves copies instead.

    The arguments are 1 where it saves these themselves. Packed, all are freed with the last one.
    """
    query, key = (
        bytes_of(r.dtype) * tokens(r) * n_head * a.d_head for n_head in (a.n_head, a.n_kv_head)
    )
    own = (1 - of_query) * query + (1 - of_key) * key
    if not _shares_storage(r):
        return own + (1 - of_value) * key
    if _rope(a):
        return own + (1 - of_value) * (query + 2 * key)
    return (1 - of_query) * (1 - of_value) * (query + 2 * key)


def _rope_forward(a: Fields, r: Run) -> Timeline:
    """RoPE of queries, and of keys."""
    if r.rope_tables == "complex":
        return times(_rope(a), rope.forward_complex(r, a.n_head + a.n_kv_head, a.d_head))
    found = []
    for n_head in (a.n_head, a.n_kv_head):
        if own_tables(a, r):
            found += rope.forward(products(r), n_head, a.d_head, _d_rotary(a))
        else:
            found += rope.forward_whole(r, n_head, a.d_head)
    return times(_rope(a), found)


def _rope_backward(a: Fields, r: Run) -> Timeline:
    """RoPE of keys, and of queries."""
    if r.rope_tables == "complex":
        found = rope.backward_complex(r, a.n_head, a.n_kv_head, a.d_head)
    elif own_tables(a, r):
        of_keys, of_queries = (
            rope.backward(products(r), n_head, a.d_head, _d_rotary(a))
            for n_head in (a.n_kv_head, a.n_head)
        )
        found = [*of_keys, *of_queries]
    else:
        # With full checkpointing the tables are arguments of the layers, until the first is done.
        table = (1 - computed_again(r)) * rope.model_table(r, _d_rotary(a))
        found = [
            *_rope_backward_whole(a, r, a.n_kv_head, 0),
            *_rope_backward_whole(a, r, a.n_head, table),
            *_other_channels_backward(a, r),
        ]
    return times(_rope(a), found)


def _rope_backward_whole(a: Fields, r: Run, n_head, table) -> Timeline:
    to_narrow = _rope_is_cast(a, r)
    given = 1 - _rope_by_head(a, r) * (1 - to_narrow)
    return rope.backward_whole(r, n_head, a.d_head, table, to_narrow, given)


def _rope_is_cast(a: Fields, r: Run) -> int:
    """1 where queries and keys have the dtype of autocast before such a RoPE, and not after it."""
    return casts(r) * (1 - _heads_are_normed(a, r))


def _other_channels_backward(a: Fields, r: Run) -> Timeline:
    """Gradients of the channels that such a RoPE concatenates, of keys and of queries."""
    to_narrow = _rope_is_cast(a, r)
    both = (
        rope.backward_other_channels(r, n, a.d_head, to_narrow) for n in (a.n_kv_head, a.n_head)
    )
    return times(_rope_by_head(a, r), [one for timeline in both for one in timeline])


def _projection(
    name: str, a: Fields, r: Run, n_head, bias, then: Timeline, saved_input=0, early=0
) -> Timeline:
    """Return the timeline of the gradients of a projection's weight, bias and input, and `then`.

    The gradient of the heads may be copied first, to be contiguous per token; fewer bytes are live
    then than in the attention before.
    """
    size, width = bytes_of(products(r).dtype), n_head * a.d_head
    states, heads = size * tokens(r) * a.d_model, size * tokens(r) * width
    weight, of_bias = size * width * a.d_model, size * bias * width
    held = casts(r) * (states + weight) + (1 - casts(r)) * saved_input
    early = largest(early, casts(r) * computed_again(r))
    return [
        *linear_backward(name, weight, of_bias, states, heads, held, early),
        *casts_backward(r, name, weight, of_bias, states, then),
        *gradients_done(name, weight + of_bias, times(1 - casts(r), then), bias),
    ]


def _head_norm_backward(a: Fields, r: Run, n_head) -> Timeline:
    if a.qk_norm == "none":
        return []
    size, width = bytes_of(r.dtype), n_head * a.d_head
    of_one = size * (a.d_head if a.qk_norm == "shared" else width)
    of_scale, of_bias = a.norm_scale * of_one, a.qk_norm_bias * of_one
    states = bytes_of(products(r).dtype) * tokens(r) * width
    if norm.is_composed(a, r):
        rms = exact_bytes(r.dtype) * _vectors(a, tokens(r), n_head)
        if casts(r):
            return norm.cast_backward(states, rms, of_scale)
        return norm.composed_backward(a, r, states, rms, of_scale)
    apart = _scaled_apart(a, r)
    scale = [
        Allocation("head norm bias gradient", of_bias, gradients=of_bias),
        *norm.scale_backward(r, states, of_scale),
    ]
    by_norm = _saved_by_head_norm(a, r, n_head) - apart * states
    with_norm = (1 - apart) * (of_scale + of_bias)
    return [
        *times(apart, scale),
        Allocation("head norm gradient", states + with_norm, states + by_norm, gradients=with_norm),
    ]


INFERENCE_IF = (
    no_mask_on_scores,
    no_sinks,
    rotates_whole_heads,
    packs,
    keys_are_not_repeated,
    heads_are_not_scaled_exactly,
    rope_is_real,
    is_not_copied,
    is_not_written_out,
)
"""Conditions of the timelines of inference."""


@valid_if(*INFERENCE_IF)
def inference(a: Fields, r: Run, new) -> Timeline:
    """Projections, RoPE, the core, the output. Keys and values move into the cache."""
    query = bytes_of(r.dtype) * r.batch * new * a.n_head * a.d_head
    key = bytes_of(r.dtype) * r.batch * new * a.n_kv_head * a.d_head
    by_head = positive(a.n_head - 1) * positive(new - 1)
    by_head_before = _rope_by_head(a, r)
    query_copied = (1 - by_head_before) * positive(r.batch - 1) * by_head
    copied = by_head * {"math": 1, "flash": by_head_before, "efficient": 0}[r.attention_kernel]
    states = bytes_of(r.dtype) * r.batch * new * a.d_model
    gate = [
        Allocation("gate", query),
        Allocation("sigmoid", query, query),
        Allocation("gated result", query, (1 + copied) * query),
    ]
    freed = (2 + copied + a.attention_gate * (1 - copied)) * query
    rotated = [
        *_rope_inference(a, r, new, a.n_head, query),
        *_rope_inference(a, r, new, a.n_kv_head, key),
        Allocation("query and key before RoPE", 0, (1 - _packed(r)) * (query + key)),
    ]
    # Packed, all three are freed with the last one that is read.
    to_cache = (query + 3 * key) * _rope(a) if _packed(r) else 2 * key
    return [
        Allocation("query", query),
        *_head_norm_inference(a, r, new, a.n_head),
        Allocation("key", key),
        *_head_norm_inference(a, r, new, a.n_kv_head),
        Allocation("value", key),
        *times(_rope(a), rotated),
        Allocation("key and value in the cache", 0, to_cache),
        *attention_core.inference(heads(a, r), r, new, query_copied, 0),
        Allocation("result contiguous per token", copied * query),
        *times(a.attention_gate, gate),
        Allocation("output", states, freed + _packed(r) * (1 - _rope(a)) * 2 * key),
    ]


def _rope_inference(a: Fields, r: Run, new, n_head, heads) -> Timeline:
    if own_tables(a, r):
        return rope.inference(r, new, n_head, _d_rotary(a), heads)
    return [Allocation("RoPE", 3 * heads, 2 * heads)]


def _head_norm_inference(a: Fields, r: Run, new, n_head) -> Timeline:
    if a.qk_norm == "none":
        return []
    width = n_head * a.d_head
    states = bytes_of(r.dtype) * r.batch * new * width
    vectors = _vectors(a, r.batch * new, n_head)
    freed = Allocation("heads before the norm", 0, states)
    if a.qk_norm != "separate":
        return [*norm.inference(a, r, new, width, vectors=vectors), freed]
    return [
        *norm.inference(a, r, new, width, scaled=0, vectors=vectors),
        *times(a.norm_scale, [Allocation("head norm scale", states, states)]),
        *times(a.qk_norm_bias, [Allocation("head norm bias", states, states)]),
        freed,
    ]
