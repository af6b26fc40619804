"""What follows from a run: sizes of elements, tokens, casts, and a device's part."""

from modelbudget.architecture.arithmetic import ceil_div, largest, positive
from modelbudget.architecture.memoised_run import changed

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

INDEX = 8
"""Bytes of a token or of a position: torch's indices are 64-bit integers."""

ONE_DEVICE = {
    "tensor_parallel": 1,
    "sequence_parallel": 0,
    "context_parallel": 1,
    "expert_parallel": 1,
}
"""Settings of a model that is not divided, for formulas that are shown."""

MASKS = ("alibi", "buckets", "relative")
"""Positions that add to the scores, which flash attention never writes out."""

OF_STORED = ("parameter_bytes", "file_bytes")
"""Bytes of parameters in memory, and of tensors in a file: the format of weights changes both."""
OF_CACHE = ("cache_bytes", "request_bytes")
"""Bytes of the cache: of `batch` sequences, and of one request."""
OF_QUANTISED = (*OF_STORED, *OF_CACHE, "flops_forward", "flops_decode")
"""Quantities of a run that quantised weights leave defined. Gradients, optimizer states and
temporary tensors depend on adapters and kernels.
"""

MESH = (
    "data_parallel", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline_parallel",
)  # fmt: skip
"""Sizes of a mesh, whose product is the number of devices."""
OF_AUTOCAST = (
    *OF_STORED,
    "gradient_bytes",
    "optimizer_bytes",
    "flops_forward",
    "flops_backward",
    "flops_decode",
)
"""Quantities of a run that autocast does not change."""


def is_sharded(r) -> int:
    """1 where a device holds a shard of each parameter tensor between two steps."""
    return int(r.zero in (2, 3))


def has_part_of_states(r) -> int:
    """1 where a device has a part of the optimizer states, and all parameters and gradients."""
    return int(r.zero == 1)


def stays_gathered(r) -> int:
    """1 where gathered parameters stay from the forward to the backward pass."""
    return int(r.zero == 2)


def stored(r):
    """Return the run as the optimizer of shards sees it: in float32 with master weights."""
    if not (is_sharded(r) and r.master_weights):
        return r
    return changed(r, {"dtype": "float32", "master_weights": False})


def reduced_number(r) -> int:
    """Bytes of a number of the gradients that devices add up."""
    return exact_bytes(r.dtype) if r.reduce_dtype == "float32" else bytes_of(r.dtype)


def division(r) -> str:
    """Name the setting by which several devices share one model; empty if none does."""
    if r.zero:
        return f"zero = {r.zero}"
    if is_divided(r):
        return f"tensor_parallel = {r.tensor_parallel}"
    if has_part_of_experts(r):
        return f"expert_parallel = {r.expert_parallel}"
    if divides_context(r):
        return f"context_parallel = {r.context_parallel}"
    if has_buckets(r):
        return f"gradient_buckets = {r.gradient_buckets!r}"
    return f"pipeline_schedule = {r.pipeline_schedule!r}" if is_pipelined(r) else ""


def is_divided(r) -> bool:
    """Whether several devices may compute one model together."""
    return not _is_one(r.tensor_parallel)


def has_part_of_experts(r) -> bool:
    """Whether a device may have a part of the routed experts."""
    return not _is_one(r.expert_parallel)


def _is_one(value) -> bool:
    return isinstance(value, int) and value == 1


def divides(r):
    """1 where several devices compute one model together, else 0."""
    return positive(r.tensor_parallel - 1) if is_divided(r) else 0


def of_states(r):
    """Return the run as norms, experts and residual stream see it: with a part of the length."""
    if not is_divided(r):
        return r
    sizes = {"length": ceil_div(r.length, parts_of_length(r)), "expert_parallel": r.expert_parallel}
    return changed(r, ONE_DEVICE | sizes)


def parts_of_length(r):
    """Count the parts in which devices divide the length of norms and residual stream."""
    return 1 + r.sequence_parallel * (r.tensor_parallel - 1)


def divides_context(r) -> bool:
    """Whether several devices may divide the tokens of a sequence."""
    return not _is_one(r.context_parallel)


def exchanges_context(r):
    """1 where several devices divide the tokens of a sequence, else 0."""
    return positive(r.context_parallel - 1) if divides_context(r) else 0


def own_tokens(r):
    """Return the run of a device's own tokens: `length` of each sequence's `whole_length`."""
    if not divides_context(r) or hasattr(r, "whole_length"):
        return r
    sizes = {"length": ceil_div(r.length, r.context_parallel), "whole_length": r.length}
    return changed(r, sizes)


def whole_length(r):
    """Return the tokens of a sequence on all devices; `r`: the run of a device's own tokens."""
    return getattr(r, "whole_length", r.length)


def replicas(r):
    """Count the devices that have the same parameters, and add their gradients up.

    All but those of routed experts, which other devices may have (`replicas_of_experts`).
    """
    return replicas_of_experts(r) * r.expert_parallel


def replicas_of_experts(r):
    """Count the devices that have the same routed experts."""
    return r.data_parallel * r.context_parallel


def rank(r):
    """Return the index, among the devices with the same parameters, of that whose bytes count."""
    return index_of_device(r, r.data_parallel, r.context_parallel, r.expert_parallel)


def index_of_device(r, *sizes):
    """Return the index, in a mesh, of the first device, the last, or that in the middle.

    In the middle of each dimension: half of the devices, rounded down, come before it.
    """
    if r.data_rank == "first":
        return 0
    index = 0
    for n in sizes:
        index = index * n + (n // 2 if r.data_rank == "middle" else n - 1)
    return index


def own_numbers(r, n, n_device, index):
    """Count those of n numbers that a device has: a chunk, or what those before it leave."""
    chunk = ceil_div(n, n_device)
    if r.data_rank == "first":
        return chunk
    if r.data_rank == "last":
        return largest(0, n - index * chunk)
    return largest(0, chunk - largest(0, (index + 1) * chunk - n))


def is_pipelined(r) -> int:
    """1 where a device holds one stage of a pipeline."""
    return int(r.pipeline_schedule != "none")


def is_interleaved(r) -> int:
    """1 where a device holds several stages of a pipeline."""
    return int(r.pipeline_schedule == "interleaved_1f1b")


def stage_index(r):
    """Return the index, in a pipeline, of the device whose bytes count."""
    last = r.pipeline_parallel - 1
    indices = {"first": 0, "second": 1, "middle": ceil_div(last, 2), "last": last}
    return indices[r.pipeline_rank]


def tokens(r):
    """Tokens in one step."""
    return r.batch * r.length


def target_tokens(r):
    """Tokens of a sequence that a decoder writes: of the target where an encoder has a source."""
    return r.target_length or r.length


def bytes_of(dtype: str) -> int:
    """Bytes of one element."""
    return BYTES[dtype]


def exact_bytes(dtype: str) -> int:
    """Return the bytes per element of values that are computed in at least single precision.

    These are the statistics of norms and the softmax of attention.
    """
    return max(4, BYTES[dtype])


def accumulates(r) -> int:
    """1 where the backward pass adds each gradient to a buffer in single precision."""
    return int(r.gradient_casts == "accumulated")


def fuses_gradients(r):
    """1 where products add gradients of weights to that buffer themselves."""
    return accumulates(r) * r.gradient_accumulation_fusion


def computes_as_megatron(r):
    """1 where products or the embedding are Megatron-Core's, of which only programs know steps."""
    gathers_again = int(r.gathered_states == "again") * r.sequence_parallel
    has_own_rows = int(r.embedding_gradient == "own_rows") * divides(r)
    return 1 - (1 - fuses_gradients(r)) * (1 - gathers_again) * (1 - has_own_rows)


def gradient_number(r) -> int:
    """Bytes of one number of the gradients that a backward pass leaves."""
    return exact_bytes(r.dtype) if accumulates(r) else bytes_of(r.dtype)


def has_buckets(r) -> int:
    """1 where devices add gradients up in buckets, which stay from step to step."""
    return int(r.gradient_buckets != "none")


def computed_again(r) -> int:
    """1 where whole layers are computed again."""
    return int(r.recompute == "full")
