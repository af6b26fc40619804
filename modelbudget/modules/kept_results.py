"""Results that a checkpointed layer keeps, as torchtitan's `selective_ac_option: op` does."""

import itertools
from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

PRODUCT = torch.ops.aten.mm.default
KEPT = {
    PRODUCT,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
"""Source: torchtitan/models/llama3/infra/parallelize.py, `_save_list`; that of a CPU is ours."""

_listeners: list[Callable[[torch.Tensor], None]] = []


def kept_results():
    """Return the contexts of one checkpointed call: of its first run and of its second."""
    products = itertools.count()

    def keeps(context, operation, *args, **kwargs) -> bool:
        if operation not in KEPT or (operation is PRODUCT and next(products) % 2):
            return False
        results = context.op_output
        for tensor in [results] if isinstance(results, torch.Tensor) else results:
            for listener in _listeners if isinstance(tensor, torch.Tensor) else ():
                listener(tensor)
        return True

    return create_selective_checkpoint_contexts(keeps)


@contextmanager
def listening(listener: Callable[[torch.Tensor], None]):
    """Call a function with each tensor that is kept within the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
