"""Quantities that a sweep can measure, in the groups that are measured together."""

from typing import TYPE_CHECKING, Literal, get_args

from modelbudget.architecture.counting_conventions import BY_NAME

OfParameters = Literal["parameters", "parameter_bytes", "file_bytes"]
OfTraining = Literal[
    "gradient_bytes",
    "optimizer_bytes",
    "activation_bytes",
    "flops_forward",
    "flops_backward",
    "peak_training_bytes",
    "bytes_at_peak",
    "unsupported_ops",
]
OfInference = Literal["cache_bytes", "request_bytes", "flops_decode", "peak_inference_bytes"]
OfProcess = Literal["resident_bytes", "resident_error_bytes", "resident_peak_bytes"]
OfAllocator = Literal["peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes"]
OfDevice = Literal["workspace_bytes", "context_bytes"]
if TYPE_CHECKING:
    Quantity = str
else:
    Quantity = Literal[
        OfParameters, OfTraining, OfInference, OfProcess, OfAllocator, OfDevice, *BY_NAME
    ]
OF_PARAMETERS = frozenset(get_args(OfParameters))
OF_TRAINING = frozenset(get_args(OfTraining))
"""Quantities of a training step."""
OF_INFERENCE = frozenset(get_args(OfInference))
"""Quantities of inference: prefill of a prompt, and decoding of one token."""
OF_PROCESS = frozenset(get_args(OfProcess))
"""Quantities reported by the operating system for a process on a real CPU."""
OF_DEVICE = frozenset(get_args(OfDevice))
"""Memory of a CUDA device in addition to tensors."""
OF_ALLOCATOR = frozenset(get_args(OfAllocator)) | OF_DEVICE
"""Quantities reported by a device's allocator for training."""
OF_SIMULATION = OF_ALLOCATOR - OF_DEVICE - {"peak_requested_bytes"}
"""Quantities that a simulated CUDA allocator computes from a trace. They have no formula."""
OF_CONVENTION = frozenset(BY_NAME)
"""Counts of parameters, and of FLOPs per token, by `configs/counting_conventions.yaml`.

Measured by applying the convention to the components that were counted on the module.
"""
OF_RUN = OF_TRAINING | OF_INFERENCE | OF_ALLOCATOR
"""Quantities of training and inference."""
FITS = {
    "training": frozenset({"peak_training_bytes"}),
    "inference": frozenset({"peak_inference_bytes"}),
    "weights_and_cache": frozenset({"parameter_bytes", "cache_bytes"}),
}
"""Quantities that must fit into a device's memory: peak training memory, peak inference memory, or
only weights and cache.
"""
