"""The largest number of bytes that live at one moment of a model's use, beside its parameters and
what it remembers.

A forward pass is told node by node: what each allocates while it runs, and what is freed when it
has run. Live bytes are the running sum. Prompt and single token are the same story, of `new` tokens
that look at `length` keys: all their own, or those of the cache. Nothing stays behind in a layer,
so each kind of part need be told only once.
"""

from types import SimpleNamespace

from modelbudget.architecture.layer_pattern import instances
from modelbudget.architecture.operations import ceil_div, largest, positive
from modelbudget.architecture.run_config import bytes_of, exact_bytes
from modelbudget.components import embedding
from modelbudget.components.attention_core import SEEDS, TWO_SEEDS
from modelbudget.components.rope import ANGLE
from modelbudget.memory.timeline import Node, times


def covered(a, r):
    """Layers that begin with attention that sees all tokens, or with latent attention, but for
    flash, which wants values as wide as keys.
    """
    kinds = {"attention", "local"} | ({"latent"} if r.attention_kernel != "flash" else set())
    return int(set(a.mixers.split()) <= kinds)


def peaks(a, r, held) -> dict:
    """Of reading the prompt and of one more token, where `held` bytes live all the time."""
    return {
        "prefill": held + _forward(a, SimpleNamespace(run=r, new=r.length)),
        "decode": held + _forward(a, SimpleNamespace(run=r, new=1)),
    }


def _forward(a, s):
    """The peak of `new` tokens, from their words to the logits of the last one."""
    states = _states(a, s)
    parts = {
        "attention": lambda: _attention(a, s),
        "local": lambda: _attention(a, s),
        "latent": lambda: _latent(a, s),
        "mlp": lambda: _mlp(a, s, a.d_ff),
        "experts": lambda: _experts(a, s),
    }
    # The states that enter a layer live as long as it runs, beside those that its mixer has made.
    found = [*_levels(0, _embedding(a, s)), *_levels(states, _ends(a, s))]
    mixers = instances(a.mixers, a.n_layer)
    mlps = instances(a.mlps, a.n_layer - a.n_dense_layer)
    mlps["mlp"] = a.n_dense_layer + mlps.get("mlp", 0)
    for second, layers in enumerate((mixers, mlps)):
        for name, n_layer in layers.items():
            if name != "none":
                levels = _levels((1 + second) * states, _sublayer(a, s, parts[name](), second))
                found += [positive(n_layer) * level for level in levels]
    return largest(*found)


def _levels(live, nodes: list[Node]) -> list:
    """Live bytes while each node runs, and at the end; after one that frees nothing, the next has
    no less.
    """
    found = []
    for allocated, freed in nodes:
        live = live + allocated
        if not (isinstance(freed, int) and freed == 0):
            found.append(live)
        live = live - freed
    return [*found, live]


def _size(s) -> int:
    return bytes_of(s.run.dtype)


def _tokens(s):
    return s.run.batch * s.new


def _states(a, s):
    return _size(s) * _tokens(s) * a.d_model


def _embedding(a, s) -> list[Node]:
    """Words, up from d_emb or not; positions, with their indices or angles; norm."""
    states, narrow = _states(a, s), _size(s) * _tokens(s) * a.d_emb
    return [
        (narrow, 0),
        (states, narrow),
        *_places(a, s, states),
        *times(a.embedding_norm, [*_norm(a, s, a.d_model), (0, states)]),
    ]


def _places(a, s, states) -> list[Node]:
    places = _size(s) * s.new * a.d_model
    if a.position == "learned":
        index = embedding.INDEX * s.new
        return [(index, 0), (index + places, index), (states, states + places), (0, index)]
    if a.position == "sinusoidal":
        angles, exact = ANGLE * s.new * ceil_div(a.d_model, 2), ANGLE * s.new * a.d_model
        cast = int(_size(s) != ANGLE)
        return [
            (3 * angles + exact, 2 * angles),
            (cast * places, cast * exact + angles),
            (states, states + places),
        ]
    return []


def _ends(a, s) -> list[Node]:
    """The norm of all states; of each sequence the last of them, down to d_emb or not, and its
    logits.
    """
    one = _size(s) * s.run.batch
    return [
        *times(a.final_norm, [*_norm(a, s, a.d_model), (0, _states(a, s))]),
        (one * (a.d_model + a.d_emb + embedding.rows(a)), 0),
    ]


def _sublayer(a, s, nodes: list[Node], second: int) -> list[Node]:
    """A part with its norms and the sum, which takes the place of what the part has made; parallel
    parts keep what they read until both are done.
    """
    states = _states(a, s)
    one_norm = _norm(a, s, a.d_model)
    added = (states, states)
    if a.norm_placement == "post":
        return [*nodes, added, *one_norm]
    if a.norm_placement == "output":
        return [*nodes, *one_norm, (0, states), added]
    if a.norm_placement == "both":
        return [*one_norm, *nodes, (0, states), *one_norm, (0, states), added]
    n_norm = 1 - a.parallel * a.shared_norm
    first = 1 - second
    before = [
        *times(1 - a.parallel, one_norm),
        *times(a.parallel * first, one_norm),
        *times(a.parallel * first * n_norm, one_norm),
        (a.parallel * second * (1 + n_norm) * states, 0),
    ]
    return [*before, *nodes, (0, (1 - a.parallel) * states), added]


def _norm(a, s, width, scaled=None, vectors=None) -> list[Node]:
    """The normalised copy of so many channels a token, and statistics, which nobody keeps."""
    scaled = a.norm_scale if scaled is None else scaled
    vectors = _tokens(s) if vectors is None else vectors
    states = _size(s) * _tokens(s) * width
    statistic = exact_bytes(s.run.dtype) * vectors
    if a.norm == "layernorm":
        return [(states + 2 * statistic, 2 * statistic)]
    if s.run.backend == "gpu":
        return [(states + statistic, statistic)]
    return [
        (states + 2 * statistic, states + statistic),
        (states, 0),
        (scaled * states, scaled * states),
        (0, statistic),
    ]


def _attention(a, s) -> list[Node]:
    """Projections, rotation, the core, the output. Keys and values move into the cache."""
    query = _size(s) * _tokens(s) * a.n_head * a.d_head
    key = _size(s) * _tokens(s) * a.n_kv_head * a.d_head
    rotary = int(a.position == "rotary")
    turned = a.d_rotary + (1 - positive(a.d_rotary)) * a.d_head
    rotation = [
        *_rotation(s, a.n_head, turned, query),
        *_rotation(s, a.n_kv_head, turned, key),
        (0, query + key),
    ]
    by_head = positive(a.n_head - 1) * positive(s.new - 1)
    heads = SimpleNamespace(n=a.n_head, n_kv=a.n_kv_head, d_key=a.d_head, d_value=a.d_head)
    heads.query_copied = (1 - rotary) * positive(s.run.batch - 1) * by_head
    heads.value_copied = 0
    copied = by_head * {"math": 1, "flash": rotary, "efficient": 0}[s.run.attention_kernel]
    return [
        (query, 0),
        *_norm_of_heads(a, s, a.n_head),
        (key, 0),
        *_norm_of_heads(a, s, a.n_kv_head),
        (key, 0),
        *times(rotary, rotation),
        (0, 2 * key),
        *_core(s, heads),
        (copied * query + _states(a, s), (copied + 2) * query),
    ]


def _norm_of_heads(a, s, n_head) -> list[Node]:
    if a.qk_norm == "none":
        return []
    width = n_head * a.d_head
    heads = _size(s) * _tokens(s) * width
    vectors = _tokens(s) * (1 if a.qk_norm == "joint" else n_head)
    if a.qk_norm != "separate":
        return [*_norm(a, s, width, vectors=vectors), (0, heads)]
    return [
        *_norm(a, s, width, scaled=0, vectors=vectors),
        *times(a.norm_scale, [(heads, heads)]),
        *times(a.qk_norm_bias, [(heads, heads)]),
        (0, heads),
    ]


def _rotation(s, n_head, turned, heads) -> list[Node]:
    """Angles, cosines, sines; both halves of the turned channels, three products and sums each; the
    rotated copy. To make the angles takes never more.
    """
    size = _size(s)
    angles, exact = (width // 2 * s.new * turned for width in (size, ANGLE))
    half = s.run.batch * n_head * angles
    cast = int(size != ANGLE)
    return [
        (exact, 0),
        (exact + cast * angles, cast * exact),
        (exact + cast * angles, cast * exact),
        (3 * half, 2 * half),
        (3 * half, 2 * half),
        (heads, 2 * half + exact + 2 * angles),
    ]


def _core(s, heads) -> list[Node]:
    """What each query finds among the keys."""
    size, exact = _size(s), exact_bytes(s.run.dtype)
    queries, keys = _tokens(s) * heads.n, s.run.batch * s.run.length
    if s.run.attention_kernel == "efficient":
        repeated = size * keys * heads.n * (heads.d_key + heads.d_value)
        repeated *= positive(heads.n - heads.n_kv)
        return [(repeated + size * queries * heads.d_value + TWO_SEEDS, repeated + TWO_SEEDS)]
    if s.run.attention_kernel == "flash":
        sums = exact * queries + int(s.run.backend == "gpu") * SEEDS
        return [(size * queries * heads.d_value + sums, sums)]
    grouped, masked = positive(heads.n - heads.n_kv), positive(s.new - 1)
    query, result = exact * queries * heads.d_key, exact * queries * heads.d_value
    key, value = (exact * keys * heads.n * width for width in (heads.d_key, heads.d_value))
    scores, seen = queries * s.run.length, masked * s.new * s.run.length
    query_copied, value_copied = heads.query_copied * query, heads.value_copied * value
    cast = int(size != exact)
    of_cast = query + exact * keys * heads.n_kv * (heads.d_key + heads.d_value)
    of_scale = query + exact * seen + grouped * (key + value)
    return [
        (cast * of_cast, 0),
        (query, 0),
        (2 * seen, seen),
        (masked * 2 * exact + exact * seen, masked * 2 * exact + seen),
        (grouped * (key + value), 0),
        (key + query_copied + exact * scores, key + query_copied),
        (masked * exact * scores, masked * exact * scores),
        (exact * scores, exact * scores),
        (cast * size * scores + value_copied + result, value_copied),
        (cast * size * queries * heads.d_value, cast * result),
        (0, cast * (of_cast + size * scores) + of_scale + exact * scores),
    ]


def _latent(a, s) -> list[Node]:
    """Queries, through a latent or not; the latent and the rotary key, which move into the cache;
    keys and values of all tokens, read from there.
    """
    size, batch, length = _size(s), s.run.batch, s.run.length
    per_query = size * _tokens(s) * a.n_head
    query, narrow = per_query * (a.d_nope + a.d_rope), size * _tokens(s) * a.q_lora_rank
    latent, rotary = (size * _tokens(s) * width for width in (a.kv_lora_rank, a.d_rope))
    all_tokens = SimpleNamespace(run=s.run, new=length)
    per_key = size * batch * length * a.n_head
    both, key = per_key * (a.d_nope + a.d_value), per_key * (a.d_nope + a.d_rope)
    remembered = size * batch * length * a.kv_lora_rank
    result = per_query * a.d_value
    by_head = positive(a.n_head - 1)
    heads = SimpleNamespace(n=a.n_head, n_kv=a.n_head, d_key=a.d_nope + a.d_rope)
    heads.d_value, heads.query_copied = a.d_value, 0
    heads.value_copied = positive(batch - 1) * by_head * positive(length - 1)
    copied = by_head * positive(s.new - 1) * int(s.run.attention_kernel == "math")
    compressed = positive(a.q_lora_rank)
    return [
        *times(compressed, [(narrow, 0), *_norm(a, s, a.q_lora_rank), (0, narrow)]),
        (query, compressed * narrow),
        (latent + rotary, 0),
        *_rotation(s, 1, a.d_rope, rotary),
        (0, latent + 2 * rotary),
        *_norm(a, all_tokens, a.kv_lora_rank),
        (both, remembered),
        *_rotation(s, a.n_head, a.d_rope, per_query * a.d_rope),
        (query, per_query * a.d_rope),
        (key, 0),
        *_core(s, heads),
        (copied * result + _states(a, s), (copied + 1) * result + 2 * query + both + key),
    ]


def _mlp(a, s, d_ff) -> list[Node]:
    """The gate and its bend; up and, without a gate, its bend; down."""
    hidden = _size(s) * _tokens(s) * d_ff
    return [
        (a.gated * hidden, 0),
        (a.gated * hidden, a.gated * hidden),
        (hidden, 0),
        (hidden, (1 + a.gated) * hidden),
        (_states(a, s), hidden),
    ]


def _experts(a, s) -> list[Node]:
    """The router's logits, probabilities, choice and weights; the order of the pairs of token and
    expert; their rows: gate or up, bend, up, product, and down; what was said weighed and summed
    up; the shared experts.
    """
    size, index, n = _size(s), embedding.INDEX, _tokens(s)
    pairs, states = n * a.n_expert_per_token, _states(a, s)
    routed, hidden = size * pairs * a.d_model, size * pairs * a.d_expert
    scores = size * n * a.n_expert
    selects = int(a.router_bias == "selection")
    return [
        ((2 + selects) * scores + size * pairs + index * pairs, size * pairs),
        (size * pairs, (2 + selects) * scores),
        (2 * index * pairs, index * pairs),
        (index * pairs + routed, 0),
        (hidden, 0),
        (hidden, hidden),
        (a.gated * hidden, 0),
        (a.gated * hidden, a.gated * hidden),
        (routed, (1 + a.gated) * hidden + routed),
        (routed + size * pairs, size * pairs),
        (2 * states, states),
        *times(positive(a.d_shared), _shared(a, s)),
        (0, size * pairs + 3 * index * pairs + 2 * routed),
    ]


def _shared(a, s) -> list[Node]:
    """The shared experts, weighed by their gate if they have one, and added."""
    states, gate = _states(a, s), _size(s) * _tokens(s)
    weighing = [(gate, 0), (gate, gate), (states, states + gate)]
    return [*_mlp(a, s, a.d_shared), *times(a.shared_gate, weighing), (states, 2 * states)]
