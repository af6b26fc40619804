"""Construction of torch models, our own and classes of `transformers`, and what they read."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig


def build(architecture: Architecture, device: str, dtype: str) -> nn.Module:
    """Build the torch model of an architecture on a device, in a dtype."""
    with _defaults(device, dtype):
        return architecture.build()


def build_class(class_name: str, config: Any, run: RunConfig, device: str) -> nn.Module:
    """Build a class of `transformers` from its config object, with the run's dtype and dropout.

    Its attention is `eager` if the run's is written out, else what the class chooses.

    Raises ValueError if the class rejects the config or has no dropout.
    """
    # Imports transformers, which takes seconds.
    from modelbudget.huggingface.construct import construct, set_dropout

    set_dropout(class_name, config, run.dropout)
    if run.attention_kernel == "written_out":
        config._attn_implementation = "eager"
    with _defaults(device, run.dtype):
        model = construct(class_name, config)
    keep_in_float32(model, getattr(torch, run.dtype))
    return model


def keep_in_float32(model: Any, dtype: torch.dtype) -> None:
    """Cast the tensors that `from_pretrained` keeps in float32 in a dtype: T5's wo in float16."""
    if plan := model._get_dtype_plan(dtype):
        kept = re.compile("|".join(plan))
        for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if kept.search(path):
                tensor.data = tensor.data.float()


@contextmanager
def _defaults(device: str, dtype: str) -> Iterator[None]:
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(default)


OF_SPEECH = ("num_mel_bins", "max_source_positions")
"""Keys of the sizes of a spectrogram."""
FRAMES_A_POSITION = 2
"""Frames of a spectrogram for each position of Whisper's encoder (Radford et al. 2022, §2.2)."""


def input_of(model: nn.Module, batch: int, length: int) -> torch.Tensor:
    """Return what a model reads: tokens (batch, length), or as many numbers each as one of our own.

    A class that reads speech reads a spectrogram (batch, mel bins, frames) of all its positions,
    which pads or cuts each sound.
    """
    parameter = next(model.parameters())
    if reads_speech(model):
        n_bins, n_positions = (getattr(model.config, name) for name in OF_SPEECH)
        return parameter.new_zeros(batch, n_bins, FRAMES_A_POSITION * n_positions)
    of_token: Any = getattr(model, "shape_of_token", ())
    return torch.zeros(batch, length, *of_token, dtype=torch.long, device=parameter.device)


def reads_speech(model: nn.Module) -> bool:
    """Whether a class reads a spectrogram of a fixed number of positions, as Whisper does."""
    config = getattr(model, "config", None)
    has_sizes = all(getattr(config, name, None) for name in OF_SPEECH)
    return has_sizes and getattr(model, "main_input_name", None) == "input_features"
