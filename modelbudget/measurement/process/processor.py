"""How the processor computes in a process that measures."""

import torch


def use_one_core() -> None:
    """Compute in one thread, and round the smallest numbers to zero.

    Other models are measured on the other cores. All tokens of a measured step are the same, which
    leaves gradients below 1e-38, with which a processor computes 50 times slower.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
