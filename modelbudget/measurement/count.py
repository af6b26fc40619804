"""Counts of parameters and bytes of an instantiated module, by component."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from modelbudget.architecture.terms import component_of


@dataclass
class Count:
    """Parameters of one component, bytes of the storages that hold them, and of a file's tensors.

    `shared_with` names the component that owns a tensor shared with this one.
    """

    parameters: int = 0
    parameter_bytes: int = 0
    file_bytes: int = 0
    shared_with: str | None = None


def by_quantity(counts: dict[str, Count], quantities: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return numbers by quantity (`parameters`, `parameter_bytes`, `file_bytes`) and component."""
    return {
        quantity: {name: getattr(count, quantity) for name, count in counts.items()}
        for quantity in quantities
    }


def count(model: nn.Module) -> dict[str, Count]:
    """Count parameters by component; the first component to register a tensor owns it.

    Two names are the same parameter if they are views of the same storage at the same offset, of
    the same shape. This covers one shared Parameter and two Parameters over one storage, on every
    device. `data_ptr()` is 0 for every tensor on meta.
    """
    counts: dict[str, Count] = {}
    owner_of_view: dict[tuple, str] = {}
    storages: set[int] = set()
    # The model keeps the storages alive, so their addresses are not reused.
    for path, parameter in model.named_parameters(remove_duplicate=False):
        component = component_of(path)
        entry = counts.setdefault(component, Count())
        storage = parameter.untyped_storage()
        view = (storage._cdata, parameter.storage_offset(), parameter.shape)
        if view in owner_of_view:
            if owner_of_view[view] != component:
                entry.shared_with = owner_of_view[view]
            continue
        owner_of_view[view] = component
        entry.parameters += parameter.numel()
        if storage._cdata not in storages:
            storages.add(storage._cdata)
            entry.parameter_bytes += storage.nbytes()
            entry.file_bytes += storage.nbytes()
    for path, module in model.named_modules():
        if in_file := vars(module).get("in_file"):  # tensors that a file has in another format
            entry = counts[component_of(f"{path}.weight")]
            entry.file_bytes += sum(tensor.nbytes for tensor in in_file.values())
            entry.file_bytes -= sum(parameter.nbytes for parameter in module.parameters())
    return counts
