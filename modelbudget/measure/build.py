"""Construction of the torch model of an architecture."""

import torch
from torch import nn

from modelbudget.architecture.base import Architecture


def build(architecture: Architecture, device: str, dtype: str) -> nn.Module:
    """Build the torch model of an architecture on a device, in a dtype."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device):
            return architecture.build()
    finally:
        torch.set_default_dtype(default)
