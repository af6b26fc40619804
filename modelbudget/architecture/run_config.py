"""How a model runs: batch, precision, optimizer, backend. The other half of a sweep's point."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from modelbudget.architecture.record import Count, Record

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
HALF = ("bfloat16", "float16")
FULL = ("float32", "float64")
FLASH_MULTIPLE, FLASH_WIDEST = 8, 256
"""Head widths that FlashAttention 2 was written for: multiples of 8 up to 256."""
ALIGNED = 16
"""Bytes of which a head must be a multiple, for a GPU's memory-efficient attention to load it."""

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

    @model_validator(mode="after")
    def has_a_copy_of_halves(self) -> Self:
        if self.master_weights and self.dtype not in HALF:
            raise ValueError(
                f"master_weights = true: dtype = {self.dtype} needs no copy of higher precision; "
                f"allowed with dtype: {', '.join(HALF)}"
            )
        return self

    @model_validator(mode="after")
    def kernels_know_dtype(self) -> Self:
        if self.backend == "cpu" and self.dtype not in FULL:
            raise ValueError(
                f"dtype = {self.dtype}: backend: cpu keep other statistics in half precision on "
                f"each device; allowed: {', '.join(FULL)}, or backend: gpu"
            )
        if (self.backend, self.attention_kernel) == ("gpu", "flash") and self.dtype not in HALF:
            raise ValueError(
                f"dtype = {self.dtype}: a GPU's flash attention takes {' or '.join(HALF)}; "
                "allowed otherwise: attention_kernel: math"
            )
        return self

    @model_validator(mode="after")
    def efficient_attention_needs_gpu(self) -> Self:
        if self.attention_kernel == "efficient" and (
            self.backend == "cpu" or self.dtype == "float64"
        ):
            raise ValueError(
                f"attention_kernel = 'efficient': backend: {self.backend}, dtype: {self.dtype} "
                f"have none; allowed: backend: gpu with dtype: float32, {', '.join(HALF)}; or "
                "attention_kernel: math"
            )
        return self

    @model_validator(mode="after")
    def cpu_flash_has_no_dropout(self) -> Self:
        if self.dropout and (self.backend, self.attention_kernel) == ("cpu", "flash"):
            raise ValueError(
                "dropout = true: a CPU's flash attention has none; allowed: attention_kernel: math"
            )
        return self


def tokens(r):
    """Tokens in one step."""
    return r.batch * r.length


def bytes_of(dtype: str) -> int:
    """Bytes of one element."""
    return BYTES[dtype]


def exact_bytes(dtype: str) -> int:
    """Bytes of one element of what is summed up in at least single precision: the statistics of
    norms, the softmax of attention.
    """
    return max(4, BYTES[dtype])


def computed_again(r) -> int:
    """1 where whole layers are computed again."""
    return int(r.recompute == "full")


def mask_bytes(backend: str, dtype_bytes: int) -> int:
    """Bytes that dropout keeps of one element: a GPU whether it was dropped, a CPU its factor."""
    return {"gpu": 1, "cpu": dtype_bytes}[backend]


def why_no_cache(architecture) -> str | None:
    """Why a model cannot compute a token from what it remembers of those before, if so."""
    if not architecture.has_cache:
        return f"{architecture.name()} keeps no cache"
    position = getattr(architecture, "position", None)
    return f"position: {position} adds to scores" if position in MASKS else None


def mistakes_together(architecture, run: RunConfig) -> list[str]:
    """What the architecture forbids the run."""
    found = [
        f"{name} = {str(value).lower()}: layers of {architecture.name()} have no such switch"
        for name, value in (("dropout", run.dropout), ("recompute", run.recompute))
        if value not in (False, "none") and name not in architecture.switches_of_run
    ]
    position, n_ctx = getattr(architecture, "position", None), getattr(architecture, "n_ctx", 0)
    if position == "learned" and run.length > n_ctx:
        found.append(
            f"length = {run.length:,}: position: learned has n_ctx = {n_ctx:,} places; "
            f"allowed: at most {n_ctx:,}"
        )
    if run.attention_kernel != "math":
        named, only_math = (
            f"attention_kernel = {run.attention_kernel!r}",
            "allowed: attention_kernel: math",
        )
        if position in MASKS:
            found.append(f"{named}: position: {position} adds to scores; {only_math}")
        window = getattr(architecture, "window", 0)
        if 0 < window < run.length:
            found.append(
                f"{named}: window = {window:,}, of length = {run.length:,}, hides "
                f"scores; {only_math}"
            )
        if getattr(architecture, "sinks", False):
            found.append(f"{named}: sinks = true adds to scores; {only_math}")
        d_head = getattr(architecture, "d_head", FLASH_MULTIPLE)
        if run.attention_kernel == "efficient" and d_head * bytes_of(run.dtype) % ALIGNED:
            found.append(
                f"{named}: d_head = {d_head}: in {run.dtype} it takes multiples of "
                f"{ALIGNED // bytes_of(run.dtype)}; {only_math}"
            )
        of_a_gpu = (run.backend, run.attention_kernel) == ("gpu", "flash")
        if of_a_gpu and (d_head % FLASH_MULTIPLE or d_head > FLASH_WIDEST):
            found.append(
                f"{named}: d_head = {d_head}: a GPU's flash attention takes multiples "
                f"of {FLASH_MULTIPLE} up to {FLASH_WIDEST}; {only_math}"
            )
    return found
