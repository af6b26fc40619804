"""The parts of a model's layers, and what layers have of each."""

from typing import Any

from pydantic import create_model

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_pattern import instances
from modelbudget.components import contract, norm
from modelbudget.components.contract import Part
from modelbudget.components.feed_forward import feed_forward
from modelbudget.components.mixers import mixers


def all_parts() -> dict[str, Part]:
    """Every part that a layer can have, by its name."""
    return mixers() | feed_forward()


def fields_of_parts() -> Any:
    """Build a record with the fields of all parts, for families that find parts by folder."""
    kinds = dict.fromkeys(component.FIELDS for component in (feed_forward() | mixers()).values())
    bases = [
        kind for kind in kinds if not any(issubclass(k, kind) and k is not kind for k in kinds)
    ]
    return create_model("PartFields", __base__=tuple(bases))


def parts(a: Fields) -> dict[str, Part]:
    """Return the parts that a model's patterns name, by name; always `mlp`, for n_dense_layer."""
    names = {*a.mixers.split(), *a.mlps.split(), "mlp"}
    return {name: component for name, component in all_parts().items() if name in names}


def component_name(name: str) -> str:
    """Return the component name of a part."""
    return getattr(all_parts()[name], "NAME", name)


def n_layers(a: Fields) -> dict:
    """Count the layers that have each part, by name."""
    numbers = instances(a.mixers, a.n_layer) | instances(a.mlps, a.n_layer - a.n_dense_layer)
    numbers["mlp"] = a.n_dense_layer + numbers.get("mlp", 0)
    numbers.pop("none", None)
    return numbers


def has_formula(quantity: str, a: Fields, r: Run):
    """Return 1 where the parts of a model and the layer provide a formula, else 0.

    Peaks are known of layers with both parts, and without a written-out norm behind one. Full
    checkpointing of a layer without a feed-forward part ends elsewhere.
    """
    no_mixer, no_mlp = ("none" in pattern.split() for pattern in (a.mixers, a.mlps))
    is_behind = a.norm_placement != "pre" and norm.is_written_out(a, r)
    missing = {
        "peak_training_bytes": no_mixer or no_mlp or is_behind,
        "flops_backward": no_mlp and r.recompute == "full",
    }
    if missing.get(quantity):
        return 0
    holds = int(quantity in contract.FUNCTIONS)
    for component in parts(a).values() if holds else ():
        holds = holds * contract.has_formula(component, quantity, a, r)
    return holds
