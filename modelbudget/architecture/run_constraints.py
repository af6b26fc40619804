"""Constraints over an architecture and its run together: kernels, lengths, options."""

from functools import cache

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.constraint import Constraint, first_mistake
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_step import HALF
from modelbudget.architecture.run_values import MASKS

FLASH_MULTIPLE, FLASH_WIDEST = 8, 256
"""Head widths that FlashAttention 2 was written for: multiples of 8 up to 256."""
ALIGNED = 16
"""Bytes of which a head must be a multiple, for a GPU's memory-efficient attention to load it."""

_KERNEL, _ONLY_MATH = "attention_kernel = '{attention_kernel}'", "allowed: attention_kernel: math"
_FUSED = "attention_kernel in ('flash', 'efficient')"

_CONSTRAINTS = (
    Constraint(
        "length <= n_ctx",
        "length = {length:,}: position: learned has n_ctx = {n_ctx:,} places; "
        "allowed: at most {n_ctx:,}",
        when="position == 'learned'",
    ),
    Constraint(
        "query_bias == key_bias and key_bias == value_bias",
        "projections = '{projections}': only some of query, key and value have a bias; "
        "allowed: separate",
        when="projections != 'separate'",
    ),
    *(
        Constraint(
            "gated",
            f"{name} = '{{{name}}}': gated: false has no gate; allowed: {name}: {allowed}",
            when=f"{name} != '{allowed}'",
        )
        for name, allowed in (("gate_and_up", "separate"), ("expert_kernel", "scattered"))
    ),
    Constraint(
        "activation in ('gelu', 'silu') and 'moe' not in mlps",
        "activation_kernel = 'fused_gate': not known yet with activation: {activation}, mlps: "
        "{mlps}; allowed: activation: gelu or silu, without moe",
        when="activation_kernel == 'fused_gate'",
    ),
    Constraint(
        "norm_scale",
        "norm_kernel = '{norm_kernel}': norm_scale: false has no scale; "
        "allowed: norm_kernel: written_out",
        when="norm_kernel in ('written_out_exact', 'written_out_wide') and norm == 'rmsnorm'",
    ),
    Constraint(
        f"position not in {MASKS}",
        f"{_KERNEL}: position: {{position}} adds to scores; {_ONLY_MATH}",
        when=_FUSED,
    ),
    Constraint(
        "window == 0 or length <= window",
        f"{_KERNEL}: window = {{window:,}}, of length = {{length:,}}, hides scores; {_ONLY_MATH}",
        when=_FUSED,
    ),
    Constraint(
        "not sinks",
        f"{_KERNEL}: sinks = true adds to scores; {_ONLY_MATH}",
        when=_FUSED,
    ),
    Constraint(
        f"position not in {MASKS} and not sinks and 'mla' not in mixers",
        "attention_kernel = 'written_out': not known yet with position: {position}, sinks: "
        "{sinks}, mixers: {mixers}; allowed: attention_kernel: math",
        when="attention_kernel == 'written_out'",
    ),
    *(
        Constraint(
            f"d_head % {ALIGNED // n_bytes} == 0",
            f"{_KERNEL}: d_head = {{d_head}}: in {{dtype}} it takes multiples of "
            f"{ALIGNED // n_bytes}; {_ONLY_MATH}",
            when=f"attention_kernel == 'efficient' and dtype in {dtypes}",
        )
        for n_bytes, dtypes in ((4, ("float32",)), (2, HALF))
    ),
    Constraint(
        f"d_head % {FLASH_MULTIPLE} == 0 and d_head <= {FLASH_WIDEST}",
        f"{_KERNEL}: d_head = {{d_head}}: a GPU's flash attention takes multiples "
        f"of {FLASH_MULTIPLE} up to {FLASH_WIDEST}; {_ONLY_MATH}",
        when="backend == 'gpu' and attention_kernel == 'flash'",
    ),
    Constraint(
        f"d_head % {ALIGNED // 2} == 0",
        f"{_KERNEL}: d_head = {{d_head}}: in {{autocast}} it takes multiples of {ALIGNED // 2}; "
        f"{_ONLY_MATH}",
        when="attention_kernel == 'efficient' and autocast != 'none'",
    ),
    Constraint(
        "n_layer % pipeline_parallel == 0",
        "pipeline_parallel = {pipeline_parallel}: must divide n_layer = {n_layer}",
        when="pipeline_parallel > 1",
    ),
    Constraint(
        "n_layer % (pipeline_parallel * virtual_stages) == 0",
        "virtual_stages = {virtual_stages}: pipeline_parallel = {pipeline_parallel} times that "
        "must divide n_layer = {n_layer}",
        when="virtual_stages > 1",
    ),
    Constraint(
        f"position not in {MASKS}",
        "pipeline_schedule = '{pipeline_schedule}': position: {position} is made once for the "
        "layers of all stages; allowed: none, learned, sinusoidal, rotary",
        when="pipeline_schedule != 'none'",
    ),
)
"""Over the fields of both; those of a field that a family lacks are not about that family."""
_OFF = {
    "dropout": "not dropout",
    "recompute": "recompute == 'none'",
    "norm_kernel": "norm_kernel == 'fused'",
    "activation_kernel": "activation_kernel == 'fused'",
    "projections": "projections == 'separate'",
    "gate_and_up": "gate_and_up == 'separate'",
    "expert_kernel": "expert_kernel == 'scattered'",
    "rope_tables": "rope_tables == 'layer'",
    "embedding_scale": "embedding_scale == 'none'",
    "embeddings": "embeddings == 'freed'",
    "attention_kernel": "attention_kernel != 'written_out'",
    "logit_cap": "logit_cap == 'none'",
    "state_dtype": "state_dtype == 'dtype'",
    "loss_chunks": "loss_chunks == 1",
    "loss_kernel": "loss_kernel == 'torch'",
    "gradient_accumulation_fusion": "not gradient_accumulation_fusion",
    "zero": "zero == 0",
    "gradient_buckets": "gradient_buckets == 'none'",
    "pipeline_schedule": "pipeline_schedule == 'none'",
    "tensor_parallel": "tensor_parallel == 1",
    "context_parallel": "context_parallel == 1",
    "expert_parallel": "expert_parallel == 1",
    "vocabulary_dtype": "vocabulary_dtype == 'dtype'",
    "adapter": "adapter == 'none'",
    "trained": "trained == 'default'",
    "trained_from_layer": "trained_from_layer == 0",
}
"""Switches of a run that not all families have, and what holds where they are off."""


@cache
def run_constraints(family: type[Architecture]) -> list[Constraint]:
    """Return the constraints over the fields of a family and of its run together."""
    switches = [
        Constraint(off, f"{name} = {{{name}}}: layers of {family.name()} have no such switch")
        for name, off in _OFF.items()
        if name not in family.switches_of_run
    ]
    fields = family.model_fields.keys() | RunConfig.model_fields.keys()
    about_shape = _CONSTRAINTS if family.has_formula else ()  # else torch decides for each call
    shared = (constraint for constraint in about_shape if constraint.names <= fields)
    return [*switches, *shared, *family.constraints_of_run]


def run_mistake(architecture: Architecture, run: RunConfig) -> str | None:
    """Return why the architecture does not allow the run, if it does not."""
    return first_mistake(run_constraints(type(architecture)), vars(architecture) | vars(run))
