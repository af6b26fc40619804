"""Shards of parameters under FSDP2, and what it does to the arguments of a part (`fully_shard`).

Source: torch 2.13, torch/distributed/fsdp/_fully_shard: `_fsdp_param.py`, `_fsdp_state.py`.
"""

from modelbudget.architecture.arithmetic import ceil_div
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_values import own_numbers
from modelbudget.operations.tape import BYTES, Shape, Tensor, contiguous_strides, product, stored_in


class Shard:
    """A parameter of which a device keeps some rows.

    `whole` is what the model computes with: its storage is empty unless it is gathered. `rows` is
    what the optimizer updates: the rows without padding, in a storage with it. `shape`: that of the
    numbers in which it is stored.
    """

    def __init__(
        self, whole: Tensor, shape: Shape, n_device: int, index: int, dtype: str, run: RunConfig
    ):
        n_rows, columns = shape[0], product(shape[1:])
        rows = ceil_div(n_rows, n_device)
        self.whole, self.n_padded = whole, rows * columns
        self.n_gathered = n_device * self.n_padded * BYTES[whole.dtype]
        n_kept = own_numbers(run, n_rows, n_device, index)
        shape = n_kept, *shape[1:]
        storage = stored_in(self.n_padded * BYTES[dtype], shape).storage
        self.rows = Tensor(shape, contiguous_strides(shape), dtype, storage)
        self.rows.name, self.rows.node = whole.name, whole.node
        whole.storage.resize(0)


def cast_inputs(args: tuple, dtype: str) -> tuple:
    """Cast floating-point arguments to the dtype of the parameters (`cast_forward_inputs`)."""

    def cast(x):
        if isinstance(x, tuple):
            return cast_inputs(x, dtype)
        is_real = isinstance(x, Tensor) and x.dtype.startswith(("float", "bfloat"))
        return x.to(dtype) if is_real and x.dtype != dtype else x

    return tuple(map(cast, args))


def inputs_with_gradient(args) -> list[Tensor]:
    """Return the tensors among arguments that need a gradient (`collect_grad_tensors`)."""
    if isinstance(args, tuple):
        return [x for arg in args for x in inputs_with_gradient(arg)]
    return [args] if isinstance(args, Tensor) and args.needs_gradient else []


def replaced_inputs(args, outputs):
    if isinstance(args, tuple):
        return tuple(replaced_inputs(arg, outputs) for arg in args)
    is_input = isinstance(args, Tensor) and args.needs_gradient
    return next(outputs) if is_input else args
