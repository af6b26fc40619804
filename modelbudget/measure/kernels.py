"""Which kernel computes attention and dropout, whatever the device.

The same model saves other tensors under another kernel. A traced model without storage runs the
very operations that a GPU would, so that its figures hold there.
"""

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


class Kernels(TorchFunctionMode):
    """Inside this context scaled_dot_product_attention and dropout run as the words say.

    attention: `math` (scores written out), `flash` (Dao et al. 2022, as on a GPU), `flash_cpu`
    (torch's own for the CPU). Raises ValueError where a mask meets a kernel that takes none.
    """

    def __init__(self, attention: str):
        super().__init__()
        self.attend = {"math": math, "flash": flash, "flash_cpu": flash_cpu}[attention]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            return self.attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def flash(q, k, v, mask=None, dropout_p=0.0, is_causal=False, enable_gqa=False):
    refuse(mask)
    return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]


def flash_cpu(q, k, v, mask=None, dropout_p=0.0, is_causal=False, enable_gqa=False):
    return aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, dropout_p, is_causal, attn_mask=mask
    )[0]


def math(q, k, v, mask=None, dropout_p=0.0, is_causal=False, enable_gqa=False):
    return aten._scaled_dot_product_attention_math(
        q, k, v, mask, dropout_p, is_causal, enable_gqa=enable_gqa
    )[0]


def refuse(mask) -> None:
    if mask is not None:
        raise ValueError("attention: flash takes no mask; use math")
