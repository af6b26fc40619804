"""Kernels of attention against torch's: fused ones on meta, with their FLOPs, and composed ones."""

from functools import partial

import pytest
import torch
from helpers.one_operation import META, Case, differences
from torch.utils._foreach_utils import (
    _get_foreach_kernels_supported_devices,
    _get_fused_kernels_supported_devices,
)

from modelbudget.measurement.trace import backend
from modelbudget.measurement.trace.attention_dispatch import Call
from modelbudget.operations import attention_kernels as ops

aten = torch.ops.aten
HEADS = {"d": (8, 16), "e": (8, 16), "l": (1, 2, 3, 33)}
HALF = ("bfloat16", "float16")


def flash(q, k, v):
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]


def flash_of_cpu(q, k, v):
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)[0]


def efficient(q, k, v):
    keeps_sums = q.requires_grad or k.requires_grad or v.requires_grad
    return aten._scaled_dot_product_efficient_attention(q, k, v, None, keeps_sums, 0.0, True)[0]


def math(q, k, v):
    return backend.attention_math(
        Call(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    )


def math_with_bias(q, k, v, bias):
    return backend.attention_math(Call(q, k, v, bias))


def math_with_dropout(q, k, v):
    return backend.attention_math_gpu(
        Call(q, k, v, None, 0.1, True, enable_gqa=q.shape[1] != k.shape[1])
    )


def written_out(q, k, v, mask):
    return backend.attention_written_out(Call(q, k, v, mask, enable_gqa=q.shape[1] != k.shape[1]))


ON_CPU = partial(ops.flash, backend="cpu")
CASES = [
    Case("flash", flash, ops.flash, "bhld bhld bhld", HEADS, devices=META, dtypes=HALF),
    Case("flash of a CPU", flash_of_cpu, ON_CPU, "bhld bhld bhld", HEADS, devices=META),
    Case(
        "flash of a CPU with grouped heads",
        flash_of_cpu,
        ON_CPU,
        "bhld bgld bgld",
        HEADS | {"h": (6,), "g": (2,)},
        devices=META,
    ),
    Case(
        "math with a CPU's dropout",
        lambda q, k, v: backend.attention_math(Call(q, k, v, None, 0.1)),
        lambda q, k, v: ops.math(q, k, v, None, False, True),
        "bhld bhld bhld",
        HEADS,
        n_draws=4,
    ),
    Case(
        "efficient with a bias",
        lambda q, k, v, bias: backend.attention_efficient(Call(q, k, v, bias)),
        lambda q, k, v, bias: ops.efficient(q, k, v, ops.bias_of_all_heads(bias, q, k)),
        "bhld bhmd bhme hlm",
        HEADS,
        devices=META,
    ),
    Case("efficient", efficient, ops.efficient, "bhld bhmd bhme", HEADS, devices=META),
    Case("math", math, ops.math, "bhld bhld bhld", HEADS, n_draws=4),
    Case(
        "math of grouped heads",
        math,
        ops.math,
        "bhld bgld bgld",
        HEADS | {"h": (6,), "g": (2,)},
        n_draws=4,
    ),
    Case(
        "math with a bias",
        math_with_bias,
        lambda q, k, v, bias: ops.math(q, k, v, bias, False),
        "bhld bhmd bhme lm",
        HEADS,
        n_draws=3,
    ),
    Case(
        "math with dropout",
        math_with_dropout,
        ops.math_with_dropout,
        "bhld bhld bhld",
        HEADS,
        devices=META,
        n_draws=8,
    ),
    Case(
        "math with dropout and a bias",
        lambda q, k, v, bias: backend.attention_math_gpu(Call(q, k, v, bias, 0.1)),
        lambda q, k, v, bias: ops.math_with_dropout(q, k, v, bias, False),
        "bhld bhmd bhme hlm",
        HEADS,
        devices=META,
        n_draws=4,
    ),
    Case(
        "written out",
        written_out,
        ops.written_out,
        "bhld bgmd bgme lm",
        HEADS | {"h": (6,), "g": (2, 6)},
        n_draws=4,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_kernel_does_what_torch_does(case):
    assert not list(differences(case))


def test_torch_has_neither_a_backward_pass_without_scores_nor_foreach_on_a_mac():
    """What `configs/attention_kernels.yaml` says of MPS: a torch that has them must change it."""
    query = torch.empty(1, 2, 16, 64, device="meta", requires_grad=True)
    output, _ = torch.ops.aten._scaled_dot_product_attention_math_for_mps(query, query, query)
    with pytest.raises(RuntimeError, match=r"derivative for .*math_for_mps is not implemented"):
        output.sum().backward()
    assert "mps" not in _get_foreach_kernels_supported_devices()
    assert "mps" in _get_fused_kernels_supported_devices()
