"""Autocast, emulated: torch casts the arguments of operations on devices, and not on meta.

The lists of operations are those of CUDA (`ATen/autocast_mode.h`), as far as language models use
them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from unittest.mock import patch

import torch
from torch.nn import functional as F

from modelbudget.architecture.run_config import RunConfig

LOWER = (
    (F, "linear"),
    (F, "conv1d"),
    (F, "scaled_dot_product_attention"),
    (torch, "addmm"),
    (torch, "bmm"),
    (torch, "einsum"),
    (torch, "matmul"),
    (torch.Tensor, "__matmul__"),
)
"""Operations that compute in the dtype of autocast: products, convolutions, attention."""
FLOAT32 = (
    (F, "layer_norm"),
    (F, "rms_norm"),
    (F, "nll_loss"),
    (F, "softmax"),
    (F, "log_softmax"),
    (F, "softplus"),
    (torch, "softmax"),
    (torch.Tensor, "softmax"),
    (torch, "exp"),
    (torch.Tensor, "exp"),
    (torch, "pow"),
    (torch.Tensor, "pow"),
    (torch, "square"),  # calls pow (ATen/native/UnaryOps.cpp)
    (torch.Tensor, "square"),
    (torch, "rsqrt"),
)
"""Operations that compute in float32. All others compute in the dtype of their arguments."""


def cross_entropy(
    logits, targets, weight=None, ignore_index: int = -100, reduction: str = "mean", **_
):
    """Compute cross-entropy as torch composes it of two operations, of which one is cast.

    The dtype of the logits is an argument of the first (`cross_entropy_loss` in LossNLL.cpp), so
    that autocast leaves it. It was seen on an H100, too: the logarithms are in half precision.
    """
    logarithms = torch.log_softmax(logits, 1, dtype=logits.dtype)
    return F.nll_loss(logarithms, targets, weight, ignore_index=ignore_index, reduction=reduction)


@contextmanager
def autocast(run: RunConfig, caches: bool = True) -> Iterator[None]:
    """Cast the arguments of operations inside this context, if the run has autocast.

    Casts of weights are kept to the end of the context if `caches`, as torch keeps them in a
    forward pass; otherwise to the end of each layer's forward pass that is repeated. Enter it after
    other replacements of the same functions.
    """
    with ExitStack() as stack:
        if run.autocast != "none":
            casts = _Casts(caches)
            lower = getattr(torch, run.autocast)
            for dtype, functions in ((lower, LOWER), (torch.float32, FLOAT32)):
                for owner, name in functions:
                    if not _is_written_out(name, run):
                        replaced = casts.before(getattr(owner, name), dtype)
                        stack.enter_context(patch.object(owner, name, replaced))
            stack.enter_context(patch.object(F, "cross_entropy", cross_entropy))
            if not caches:
                # What torch.utils.checkpoint enters to repeat a forward pass.
                stack.enter_context(patch.object(torch.amp, "autocast", casts.repeated))
        yield


def _is_written_out(name: str, run: RunConfig) -> bool:
    """Whether a function is replaced by operations, whose arguments are cast instead of its own."""
    if name == "rms_norm":
        return run.norm_kernel != "fused"
    return name == "scaled_dot_product_attention" and run.attention_kernel == "written_out"


class _Casts:
    """Casts of the floating-point tensors among the arguments of functions.

    Within such a function nothing is cast: attention that is composed of products computes them in
    the dtype that it chooses.
    """

    def __init__(self, caches: bool):
        self.cache: dict[int, torch.Tensor] | None = {} if caches else None
        self.inside = False

    @contextmanager
    def repeated(self, *_, **__) -> Iterator[None]:
        """Keep casts of weights inside this context."""
        self.cache = {}
        try:
            yield
        finally:
            self.cache = None

    def before(self, function: Callable, dtype: torch.dtype) -> Callable:
        """Return the function with arguments cast to `dtype`."""

        @wraps(function)
        def with_casts(*args, **kwargs):
            if self.inside or "out" in kwargs:  # torch casts no operation with `out`
                return function(*args, **kwargs)
            # The last argument first, as torch's compiled code does; their gradients are cast in
            # the opposite order.
            by_name = {key: self._cast(value, dtype) for key, value in reversed(kwargs.items())}
            values = [self._cast(value, dtype) for value in reversed(args)]
            self.inside = True
            try:
                return function(*reversed(values), **by_name)
            finally:
                self.inside = False

        return with_casts

    def _cast(self, value, dtype: torch.dtype):
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        weight = value.is_leaf and value.requires_grad and not value._is_view()
        if self.cache is None or not weight or dtype == torch.float32:
            return value.to(dtype)
        if id(value) not in self.cache:
            self.cache[id(value)] = value.to(dtype)
        return self.cache[id(value)]
