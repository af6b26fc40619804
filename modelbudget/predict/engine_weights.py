"""What a device of an engine loads: its share of a model, weights, tables and adapters."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from modelbudget.architecture.arithmetic import ceil_div, divisors
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_adapter import ALL_LINEAR, is_named
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import bytes_of
from modelbudget.architecture.stored_formats import FORMATS
from modelbudget.components import layer
from modelbudget.components.attention.attention_fields import ATTEND, PLAIN
from modelbudget.components.multi_head import MultiHeadFields
from modelbudget.components.weight_formats import converts, format_of, matrix_bytes, tensor_bytes
from modelbudget.memory.caching_allocator import layout
from modelbudget.predict.prediction_or_reason import predicted

VOCABULARY_MULTIPLE = 64
"""vLLM pads the vocabulary to this (DEFAULT_VOCAB_PADDING_SIZE), before it divides it."""
DIVIDED_PARTS = {
    *PLAIN, "mla", "gated_deltanet", "kimi_delta", "mamba2", "attention_and_mamba2",
    "selective_scan", "lightning_attention", "mlp", "moe", "none",
}  # fmt: skip
"""Parts of layers whose share on one of several devices is known in serving."""
DIVIDED = (
    "n_head", "n_linear_head", "n_linear_key_head", "n_mamba_head", "d_scan", "d_ff", "d_shared",
)  # fmt: skip
"""Sizes of which each device has a part: columns of one matrix, rows of the next."""
COPIED = ("n_kv_head", "n_mamba_group")
"""Sizes of which several devices have the same, where there are fewer heads, or one group."""
PACKED = {"query": "qkv", "key": "qkv", "value": "qkv", "gate": "gate_up", "up": "gate_up"}
"""Matrices that vLLM has as rows of one."""
EXPERT_MULTIPLES = {"mxfp4": (64, 128)}
"""Of formats of experts, multiples to which Triton's kernel in vLLM rounds the channels of an
expert, and Marlin's, which rounds those of the model too (fused_moe/oracle/mxfp4.py).
"""
MODEL_MULTIPLE = 256
DOWN, KV_UP = "down", "kv_up"
"""The matrix of an expert whose inputs are its channels, and MLA's from latents to heads."""
OF_BITSANDBYTES = {"bnb-4bit": "bnb-4bit", "bnb-4bit-double": "bnb-4bit"}
"""Formats in which vLLM stores routed experts, by that of other matrices: bitsandbytes' has them in
4 bits, with scales in float32 (model_loader/bitsandbytes_loader.py).
"""
SCALARS_OF_ATTENTION, BLOCK = 7, 512
"""Scales and ranges of queries, keys, values and probabilities of a layer (vLLM's
attention/layer.py), and the bytes of torch's block for each.
"""
DRAFTED_VOCABULARY = 32_000
"""Tokens that published heads draft, each with its number in the model's vocabulary."""
LAYERS_READ, NORMS, INDEX = 3, 4, 8
SHARES = ("tensor_parallel", "data_parallel", "expert_parallel", "context_parallel")
"""Settings of an engine's devices, which are other ones than those of a training step."""
ON_ONE_DEVICE: dict[str, Any] = dict.fromkeys(SHARES, 1)
ALONE = ON_ONE_DEVICE | {
    "cache_dtype": "dtype", "cache_layout": "contiguous", "cache_unquantised": 0,
}  # fmt: skip


def rank_of(a: Architecture, run: RunConfig) -> Architecture:
    """Return the architecture of what one device computes. Raises ValueError.

    Heads, hidden channels of MLPs and experts, and the vocabulary are divided (Shoeybi et al. 2019,
    §3), and heads and channels of recurrences (vLLM's models/qwen3_next.py, layers/kda.py,
    layers/mamba/mamba_mixer.py, mamba_mixer2.py and linear_attn.py). MLA's latent is on each, and
    so is the only group of Mamba-2. Norms over all heads are divided as in MiniMax
    (`head_norm_bytes`). vLLM pads the vocabulary on one device, too. Routed experts are divided
    among the devices of all replicas of `data_parallel` (fused_moe/config.py), whole ones with
    `expert_parallel`; with both, shared experts are whole (`use_sequence_parallel_moe` in
    config/parallel.py).
    """
    n_devices, n_shares = run.tensor_parallel, run.tensor_parallel * run.data_parallel
    if n_shares == 1 and run.cache_layout != "paged":
        return a
    fields: Any = a
    if n_devices > 1:
        _check_parts(fields, n_devices)
    is_whole = run.expert_parallel > 1
    of_experts = "n_expert" if is_whole else "d_expert"
    n_of = dict.fromkeys((*DIVIDED, *COPIED), n_devices) | {of_experts: n_shares}
    if is_whole and 1 < n_devices < n_shares:
        n_of["d_shared"] = 1
    sizes = {name: size for name in n_of if (size := getattr(a, name, 0))}
    for name, size in sizes.items():
        if not _is_divided(name, size, n := n_of[name]):
            of_same = [(k, of) for k, of in sizes.items() if n_of[k] == n]
            most = max(m for m in divisors(n) if all(_is_divided(*of, m) for of in of_same))
            setting = "expert_parallel" if name == "n_expert" else "tensor_parallel"
            allowed = f"allowed: `{setting}={most}`"
            raise ValueError(f"{name} = {size:,}: {n} devices do not divide it; {allowed}")
    shares = {name: max(size // n_of[name], 1) for name, size in sizes.items()}
    if hasattr(a, "vocab_multiple"):
        rows = _rounded(_rounded(fields.n_vocab, fields.vocab_multiple), VOCABULARY_MULTIPLE)
        shares |= {"vocab_multiple": 1, "n_vocab": ceil_div(rows, n_devices)}
    return a.model_copy(update=shares)


def _is_divided(name: str, size: int, n_devices: int) -> bool:
    """Return whether devices divide a size, or several have the same head or group."""
    most_copied = n_devices if name == "n_kv_head" else 1
    is_copied = name in COPIED and size <= most_copied and n_devices % size == 0
    return size % n_devices == 0 or is_copied


def _check_parts(a: Any, n_devices: int) -> None:
    """Raise ValueError if a part of the layers is not divided in serving."""
    setting = f"tensor_parallel = {n_devices}"
    whole = "not divided in serving; allowed: `tensor_parallel=1`, the whole model on each"
    if not isinstance(a, MultiHeadFields):
        if not {"mixers", "mlps", "n_kv_head"} <= type(a).model_fields.keys():
            raise ValueError(f"{setting}: {a.name()}: {whole}")
        parts = {name for name, n in layer.n_layers(a).items() if n}
        if unknown := parts - DIVIDED_PARTS:
            raise ValueError(f"{setting}: {', '.join(sorted(unknown))}: {whole}")
    if (qk_norm := getattr(a, "qk_norm", "none")) == "separate":
        raise ValueError(f"{setting}: qk_norm = {qk_norm}: {whole}")


def with_stored_experts(a: Any, run: RunConfig) -> RunConfig:
    """Return the run with the format in which vLLM stores experts that a library leaves out."""
    is_left_out = run.expert_weights == "weights" and run.weights_of == "library"
    word = OF_BITSANDBYTES.get(run.weights)
    if word is None or run.cache_layout != "paged" or not is_left_out:
        return run
    return run.model_copy(update={"expert_weights": word} if getattr(a, "n_expert", 0) else {})


def totals(quantity: str, a: Architecture, run: RunConfig) -> dict[str, int]:
    """Return the totals of a quantity by component. Raises ValueError with the reason."""
    return {name: term.total for name, term in predicted(quantity, a, run).items()}


def weight_bytes(a: Architecture, run: RunConfig) -> int:
    """Return the bytes of a device's weights; the router is whole on each. Raises ValueError."""
    rank = rank_of(a, run)
    _check_groups(a, rank, run)
    stored = _with_padded_experts(rank, run)
    by_component = totals("parameter_bytes", stored, run.model_copy(update=ALONE))
    copies = run.expert_parallel
    return sum(n * (copies if name.endswith("router") else 1) for name, n in by_component.items())


def _expert_multiples(run: RunConfig) -> tuple[int, int]:
    """Return the multiples of an expert's channels at the least and the most; 1 of most formats."""
    word = run.weights if run.expert_weights == "weights" else run.expert_weights
    return EXPERT_MULTIPLES.get(word, (1, 1)) if run.cache_layout == "paged" else (1, 1)


def _with_padded_experts(rank: Any, run: RunConfig) -> Architecture:
    """Return a device's share of a model with the channels that each expert has at the least."""
    least, most = _expert_multiples(run)
    return rank.model_copy(update={"d_expert": _rounded(rank.d_expert, least)} if most > 1 else {})


def kernel_padding_bytes(a: Architecture, run: RunConfig) -> int:
    """Return the bytes by which Marlin pads experts besides `weight_bytes`, the most on Hopper.

    Which kernel a device has is not known. Raises ValueError.
    """
    _, of_expert = _expert_multiples(run)
    if of_expert == 1:
        return 0
    padded = 0
    for matrix, n_layer in matrices_of(_with_padded_experts(rank_of(a, run), run)):
        if not matrix.routed or not converts(run, matrix.routed, matrix.path):
            continue
        multiples = MODEL_MULTIPLE, of_expert
        of_input, of_output = reversed(multiples) if matrix.name == DOWN else multiples
        larger = matrix._replace(
            d_in=_rounded(matrix.d_in, of_input), d_out=_rounded(matrix.d_out, of_output)
        )
        padded += n_layer * matrix.n * (matrix_bytes(larger, run) - matrix_bytes(matrix, run))
    return padded


def _rounded(n: int, multiple: int) -> int:
    return ceil_div(n, multiple) * multiple


def whole_norm_bytes(a: Any, run: RunConfig) -> int:
    """Return the most that weights of norms over all heads have besides a device's share.

    vLLM's models/olmo2.py and olmoe.py have them whole on each device, minimax_m2.py divides them.
    """
    if run.tensor_parallel == 1 or getattr(a, "qk_norm", "none") != "joint":
        return 0
    rank: Any = rank_of(a, run)
    n_layer = sum(n for name, n in layer.n_layers(a).items() if name in ATTEND)
    heads, share = (x.n_head + x.n_kv_head for x in (a, rank))
    return bytes_of(run.dtype) * a.d_head * n_layer * (heads - share)


def head_norm_bytes(a: Any, run: RunConfig) -> int:
    """Return the most that norms over all heads of queries and keys need besides a device's share.

    Where they are whole, a device gathers queries and keys: at most two of each are live. MiniMax
    sums squares alone.
    """
    if not (of_weights := whole_norm_bytes(a, run)):
        return 0
    of_token = 2 * bytes_of(run.dtype) * a.d_head * (a.n_head + a.n_kv_head)
    return of_weights + run.batched_tokens * of_token


def _check_groups(a: Architecture, rank: Architecture, run: RunConfig) -> None:
    """Raise ValueError if numbers that share a scale would be on two devices.

    vLLM cannot load such shards (vllm-project/vllm, issues 25292 and 52997). Of families that list
    no matrices, neither that nor which ones an engine converts is known.
    """
    if run.weights not in FORMATS:
        return
    if not a.lists_matrices:
        unknown = f"which matrices of {a.name()} are converted by an engine is not known"
        raise ValueError(f"weights = {run.weights}: {unknown}; allowed: `weights=dtype`")
    for (whole, _), (part, _) in zip(matrices_of(a), matrices_of(rank), strict=True):
        word = format_of(run, part.routed, part.path)
        if word is None or not (stored := FORMATS[word].format).groups:
            continue
        is_second = part.routed and run.expert_weights != "weights"
        group = (is_second and run.expert_weight_group) or run.weight_group
        block = (is_second and run.expert_weight_block) or run.weight_block or stored.block
        sizes = (whole.d_in, part.d_in, group), (whole.d_out, part.d_out, block)
        for size, share, together in sizes:
            if together and share != size and share % together:
                devices = run.tensor_parallel
                most = max(d for d in divisors(devices) if d == 1 or not size % (d * together))
                allowed = f"`tensor_parallel={most}`"
                of_all = devices * run.data_parallel
                if part.routed:
                    allowed += f", or `expert_parallel={of_all}`: whole experts on each"
                elif getattr(a, "n_expert", 0):
                    replicas = f"data_parallel={of_all // most}, expert_parallel={of_all}"
                    allowed += f", or `tensor_parallel={most}, {replicas}`: experts on all"
                raise ValueError(
                    f"{part.name}: {share:,} of {size:,} channels on each device: {word} "
                    f"needs a multiple of {together}; allowed: {allowed}"
                )


def matrices_of(a: Any) -> list:
    """Return the matrices of linear layers, with the number of layers that have each."""
    if not {"mixers", "mlps"} <= type(a).model_fields.keys():
        return []
    n_layer = layer.n_layers(a)
    return [
        (matrix._replace(part=layer.component_name(name)), n_layer[name])
        for name, component in layer.parts(a).items()
        if n_layer[name] and hasattr(component, "matrices")
        for matrix in component.matrices(a)
    ]


def largest_matrix(a: Architecture, run: RunConfig) -> int:
    """Return the bytes in the dtype of the largest matrix that is quantised; 0 without any."""
    if run.weights == "dtype":
        return 0
    sizes = [matrix.d_in * matrix.d_out for matrix, _ in matrices_of(a)]
    return bytes_of(run.dtype) * max(sizes, default=0)


def dequantised_experts(a: Architecture, run: RunConfig) -> int:
    """Return the bytes in the dtype of all experts of a layer, which bitsandbytes' kernel copies.

    `BitsAndBytesMoEMethod` of vLLM's quantization/bitsandbytes.py. 0 in other formats.
    """
    if run.cache_layout != "paged" or run.expert_weights not in OF_BITSANDBYTES.values():
        return 0
    numbers: Counter[str] = Counter()
    for matrix, _ in matrices_of(a):
        numbers[matrix.part] += matrix.n * matrix.d_in * matrix.d_out if matrix.routed else 0
    return bytes_of(run.dtype) * max(numbers.values(), default=0)


def adapter_bytes(a: Architecture, run: RunConfig) -> int:
    """Return the bytes of one served LoRA adapter on a device: r (d_in + d_out) a matrix.

    Of column-parallel layers the first matrix is whole, of row-parallel ones the second (vLLM
    without fully_sharded_loras). Raises ValueError.
    """
    rank = rank_of(a, run)
    channels = adapted_channels(rank, run.adapter_targets.split())
    if not channels:
        raise ValueError(f"served_adapters: adapter_targets = {run.adapter_targets}: no such layer")
    return bytes_of(run.dtype) * run.adapter_rank * channels


def adapted_channels(
    a: Architecture, targets: Collection[str], layers: Mapping[str, int] | None = None
) -> int:
    """Return the inputs and outputs of all linear layers that a LoRA adapter is around.

    Its parameters are the rank times these. `layers`: in how many layers, by target, where it is
    not in all.
    """
    of_target = layers or {}
    return sum(
        of_target.get(matrix.name, n_layer) * matrix.n * (matrix.d_in + matrix.d_out)
        for matrix, n_layer in matrices_of(a)
        if not matrix.routed and (ALL_LINEAR in targets or is_named(targets, matrix.path))
    )


def rotary_bytes(a: Any, run: RunConfig) -> int:
    """Return the bytes of vLLM's tables of cosines and sines, with one row for each position."""
    if getattr(a, "position", "") != "rotary" or run.cache_layout != "paged":
        return 0
    width = getattr(a, "d_rope", 0) or getattr(a, "d_rotary", 0) or a.d_head
    return bytes_of(run.dtype) * a.n_ctx * width


def allocator_bytes(a: Any, run: RunConfig) -> int:
    """Return by how much torch's allocator rounds up a device's weights; 0 where it is not known.

    Matrices are as vLLM packs them, in the order of modules: query, key and value in one, gate and
    up, all experts of a layer. Of quantised ones the order is not known.
    """
    if run.weights != "dtype" or run.cache_layout != "paged":
        return 0
    rank: Any = rank_of(a, run)
    size = bytes_of(run.dtype)
    packed: Counter[tuple[Any, ...]] = Counter()
    for matrix, n_layer in matrices_of(rank):
        key = matrix.part, PACKED.get(matrix.name) or matrix.name, n_layer
        packed[key] += size * matrix.n * matrix.d_in * matrix.d_out
    embedding = size * rank.n_vocab * rank.d_model
    sizes = [embedding]
    for layer_index in range(rank.n_layer if packed else 0):
        sizes += [n for (*_, n_layer), n in packed.items() if layer_index < n_layer]
    sizes += [run.rope_rows * rotary_bytes(a, run), 0 if rank.tied else embedding]
    blocks = layout(sizes)
    return blocks.allocated - blocks.requested


def scalar_bytes(a: Any, run: RunConfig) -> int:
    """Return the most by which torch's blocks for scalars of vLLM are more than is counted.

    Those of attention, of which older versions have fewer or none, and scales of whole matrices.
    """
    if not {"mixers", "mlps"} <= type(a).model_fields.keys():
        return 0
    n_layer = sum(n for name, n in layer.n_layers(a).items() if name in (*ATTEND, "mla"))
    of_matrices = sum(
        n_layer * matrix.n * max(BLOCK - n_bytes, 0)
        for matrix, n_layer in matrices_of(a)
        if not matrix.routed
        for n_bytes in tensor_bytes(matrix, run)
        if n_bytes
    )
    return SCALARS_OF_ATTENTION * BLOCK * n_layer + of_matrices


def bytes_besides(a: Architecture, run: RunConfig, engine: str = "vLLM") -> dict[str, int]:
    """Return the bytes that an engine holds for matrices besides `weight_bytes`, by name.

    Scales of channels are in float32. MLA's keys and values are formed from copies in the dtype:
    vLLM's of quantised matrices (`process_weights_after_loading` of
    layers/attention/mla_attention.py), SGLang's of all (`post_load_weights` of
    srt/models/deepseek_common/deepseek_weight_loader.py).
    """
    if run.cache_layout != "paged":
        return {}
    held: Counter[str] = Counter()
    size = bytes_of(run.dtype)
    of_scale = max(4 - size, 0) if run.weights in ("fp8-channel", "int8-channel") else 0
    for matrix, n_layer in matrices_of(rank_of(a, run)):
        is_converted = run.weights in FORMATS and converts(run, matrix.routed, matrix.path)
        rows = n_layer * matrix.n * matrix.d_out
        held["scales in float32"] += of_scale * rows * is_converted
        if matrix.name == KV_UP and (is_converted or engine == "SGLang"):
            held["copies of kv_up"] += size * rows * matrix.d_in
    return +held


def draft_head_bytes(a: Any, run: RunConfig) -> int:
    """Return the bytes of a head of EAGLE 3 with a layer as large as the model's; 0 without one.

    Li et al. 2025, "EAGLE-3", §3; vLLM's models/llama_eagle3.py. States of three layers are
    projected to one, whole on each device, which a layer of a Llama reads next to the embedding of
    a token. Norms and a head of its own follow; the embedding is the model's. Raises ValueError
    where heads have other sizes.
    """
    if run.draft_head == "none":
        return 0
    fields = vars(a)
    is_plain = fields.get("mixers") in PLAIN and fields.get("mlps") == "mlp"
    if not is_plain or a.n_head * a.d_head != a.d_model:
        raise ValueError(
            f"draft_head = {run.draft_head}: known of dense decoders with n_head · d_head = "
            "d_model alone, whose sizes its layer has; allowed: `draft` with the name of a model"
        )
    rank: Any = rank_of(a, run)
    d = a.d_model
    heads, kv_heads = rank.n_head * a.d_head, rank.n_kv_head * a.d_head
    layer = 2 * d * (heads + 2 * kv_heads) + heads * d + 3 * d * rank.d_ff
    head = ceil_div(DRAFTED_VOCABULARY, run.tensor_parallel) * d
    numbers = LAYERS_READ * d * d + layer + NORMS * d + head
    return bytes_of(run.dtype) * numbers + INDEX * DRAFTED_VOCABULARY
