"""How a model runs: batch, precision, optimizer, backend. The other half of a sweep's point."""

from types import SimpleNamespace
from typing import ClassVar, Literal

from pydantic import Field

from modelbudget.architecture.constraint import Constraint
from modelbudget.architecture.record import Count, Record

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
HALF = ("bfloat16", "float16")
FULL = ("float32", "float64")

INDEX = 8
"""Bytes of a token or of a position: torch's indices are 64-bit integers."""

MASKS = ("alibi", "buckets", "relative")
"""Positions that add to the scores, which flash attention never writes out."""


class RunConfig(Record):
    """One step of training, or one use, of a model. No field has the name of an architecture's."""

    batch: Count = Field(1, description="sequences in one step")
    length: Count = Field(1024, description="tokens in each sequence")
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = Field(
        "float32", description="of parameters, gradients and activations"
    )
    master_weights: bool = Field(
        False,
        description="the optimizer keeps a float32 copy of half-precision parameters and works "
        "on that (Micikevicius et al. 2018, §3.1)",
    )
    optimizer: Literal["sgd", "momentum", "adamw"] = "adamw"
    foreach: bool = Field(
        False, description="the optimizer treats all tensors at once: faster, with larger peaks"
    )
    backend: Literal["gpu", "cpu"] = Field(
        "gpu",
        description="whose operations run: a GPU's fused norms and dropout (traced without "
        "storage, or on CUDA), or those of a CPU (traced, or really allocated)",
    )
    attention_kernel: Literal["math", "flash", "efficient"] = Field(
        "math",
        description="scores written out in memory, or never (FlashAttention: Dao et al. 2022; "
        "memory-efficient attention: Rabe & Staats 2021, which a GPU has in float32 too)",
    )

    dropout: bool = Field(
        False,
        description="dropout of the embedding, of what each attention and MLP adds, and of "
        "attention's probabilities (Vaswani et al. 2017, §5.4)",
    )
    recompute: Literal["none", "selective", "full"] = Field(
        "none",
        description="activations that are computed again in the backward pass instead of kept: "
        "those of attention's core, or all of a layer but its input (Korthikanti et al. 2022, §5)",
    )

    derived: ClassVar[dict[str, str]] = {"length": "max(1, min(n_ctx, 1024))"}

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            f"dtype in {HALF}",
            "master_weights = true: dtype = {dtype} needs no copy of higher precision; "
            f"allowed with dtype: {', '.join(HALF)}",
            when="master_weights",
        ),
        Constraint(
            f"dtype in {FULL}",
            "dtype = {dtype}: backend: cpu keep other statistics in half precision on "
            f"each device; allowed: {', '.join(FULL)}, or backend: gpu",
            when="backend == 'cpu'",
        ),
        Constraint(
            f"dtype in {HALF}",
            f"dtype = {{dtype}}: a GPU's flash attention takes {' or '.join(HALF)}; "
            "allowed otherwise: attention_kernel: math",
            when="backend == 'gpu' and attention_kernel == 'flash'",
        ),
        Constraint(
            "backend == 'gpu' and dtype != 'float64'",
            "attention_kernel = 'efficient': backend: {backend}, dtype: {dtype} have none; "
            f"allowed: backend: gpu with dtype: float32, {', '.join(HALF)}; or "
            "attention_kernel: math",
            when="attention_kernel == 'efficient'",
        ),
        Constraint(
            "backend == 'gpu' or attention_kernel != 'flash'",
            "dropout = true: a CPU's flash attention has none; allowed: attention_kernel: math",
            when="dropout",
        ),
    )


def tokens(r):
    """Tokens in one step."""
    return r.batch * r.length


def one_token(r):
    """Return the run of one decoding step: one new token for each sequence."""
    return SimpleNamespace(batch=r.batch, length=1)


def bytes_of(dtype: str) -> int:
    """Bytes of one element."""
    return BYTES[dtype]


def exact_bytes(dtype: str) -> int:
    """Return the bytes per element of values that are computed in at least single precision.

    These are the statistics of norms and the softmax of attention.
    """
    return max(4, BYTES[dtype])


def computed_again(r) -> int:
    """1 where whole layers are computed again."""
    return int(r.recompute == "full")


def mask_bytes(backend: str, dtype_bytes: int) -> int:
    """Bytes that dropout keeps of one element: a GPU whether it was dropped, a CPU its factor."""
    return {"gpu": 1, "cpu": dtype_bytes}[backend]
