"""What a reader of the calculator can change, and the quantities that it has."""

from typing import Any

from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_step import HALF
from modelbudget.report.config_translation import OF_FILES

START, START_LENGTH = "llama-3-8b", 8192
"""Model and length of the answer that a reader finds: those of the acts."""
MAIN = (
    "n_vocab", "n_ctx", "d_model", "n_layer", "n_head", "n_kv_head", "d_head", "d_ff", "n_expert",
    "n_expert_per_token", "d_expert", "gated", "tied", "head_bias",
)  # fmt: skip
"""Fields at the top of the table; the others are below, in a closed part."""
OF_RUN = (
    "batch", "length", "data_parallel", "tensor_parallel", "sequence_parallel",
    "pipeline_parallel", "n_microbatch",
)  # fmt: skip
CHOICES_OF_RUN = {
    "dtype": ("of parameters, activations and cache", (*HALF, "float32")),
    "attention_kernel": (
        "scores in memory (math) or not (flash, efficient)",
        ("flash", "efficient", "math"),
    ),
    "recompute": ("activations of layers kept, or computed again (full)", ("none", "full")),
    "zero": (
        "divided among data-parallel devices: 0: nothing; 1: optimizer states, with float32 master "
        "weights and gradients (Megatron-Core); 2, 3: all, gathered for a step or for a layer "
        "(FSDP2)",
        (3, 2, 1, 0),
    ),
    "pipeline_schedule": (
        "all forward passes first, or one forward and one backward pass in turn",
        ("gpipe", "1f1b"),
    ),
    "pipeline_rank": ("the stage whose bytes these are", ("first", "last")),
}
"""Categorical run settings with a description and their choices in the page, the first at first;
of kernels, the first with which torch runs the model on a GPU.

With the sizes in OF_RUN these are the run settings that a reader can change; all others have their
defaults, but for those in BROUGHT.
"""
OF_SEVERAL = {
    "zero": "data_parallel",
    "sequence_parallel": "tensor_parallel",
    "pipeline_schedule": "pipeline_parallel",
    "n_microbatch": "pipeline_parallel",
    "pipeline_rank": "pipeline_parallel",
}
"""Settings of how devices share a model, and the number of these devices.

One device has nothing to share: these settings then have their defaults.
"""
BROUGHT = {"zero": {1: {"master_weights": True, "gradient_casts": "accumulated"}}}
"""Settings that a choice brings with it: those with which it is known."""
ZERO_OF_STAGES, ZERO_OF_OTHERS = (0, 1), (0, 3)
"""`zero` in the page of stages of published models, and of all other models, without stages.

The formulas of shards in a stage would double the page's; the command line has them.
"""
DESCRIPTIONS = {
    "data_parallel": "devices that each compute a batch of their own; bytes are the first one’s"
}
"""Of fields of which the page has only some of the uses."""
STATES = "states"
QUANTITIES = {
    "parameter_bytes": "bytes of parameters",
    "gradient_bytes": "bytes of gradients",
    "optimizer_bytes": "bytes of AdamW state",
    STATES: "bytes of these three",
    "activation_bytes": "bytes of activations",
    "flops_forward": "FLOPs of the forward pass",
    "flops_backward": "FLOPs of the backward pass",
    "cache_bytes": "bytes of KV cache",
}
PARTS = [name for name in QUANTITIES if name != STATES]
"""Quantities with components, computed one by one."""
PEAKS = {
    "peak_training_bytes": "bytes at the peak of training",
    "peak_inference_bytes": "bytes at the peak of inference",
}
"""Quantities without components: the largest of all phases."""
OTHERS = {
    "parameter_bytes": ("weights", (*OF_FILES, "fp8-channel", "int4-group", "mxfp4")),
    "optimizer_bytes": ("optimizer", ("adamw-8bit", "adafactor", "muon", "lion")),
}
"""Quantities that the page has with other values of one setting too: of one device, in 16 bits."""
OF_CLASSES = "peak_training_bytes"
"""The quantity that the page has of classes of `transformers` as well."""
OF_INFERENCE = ("cache_bytes", "peak_inference_bytes")
"""Quantities of one device, whatever the number of those that train."""
BY_PROGRAM = "peak_inference_bytes"
"""The quantity that the page has of programs, of published models and others with their words."""
Settings = dict[str, Any]
ALONE: Settings = {name: RunConfig.model_fields[name].default for name in OF_SEVERAL}
"""Settings of a model that one device computes."""
ABSENT = {"n_mtp_layer": 0}
"""Fields that the page does not compute with, and their only value there: each formula would have
its terms for layers twice.
"""
EXCHANGEABLE = "mlps"
"""The categorical field that a reader can change: dense MLPs or experts."""
NEW_EXPERTS = {"n_expert": 8, "n_expert_per_token": 2, "d_expert": "d_ff"}
"""Experts of a model that had none: those of Mixtral, each as wide as the MLP was."""


def plain(value):
    """Return a value as scripts have it: a switch as 1 or 0."""
    return int(value) if isinstance(value, bool) else value
