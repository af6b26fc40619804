"""A layer: a mixer and a feed-forward part with their norms, in sequence or in parallel.

Everything here iterates over the parts that a model's patterns name (`contract.py`).
"""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import create_model

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_groups import LayerGroup
from modelbudget.architecture.layer_pattern import instances
from modelbudget.architecture.terms import Term, Terms, join, merged, part
from modelbudget.components import contract, norm
from modelbudget.components.attention.attention_fields import GATED_QUERY, PACKED, AttentionFields
from modelbudget.components.contract import Part, Values, fields_of, tensors_of
from modelbudget.components.feed_forward import feed_forward, mlp, moe
from modelbudget.components.feed_forward.mlp import MLPFields
from modelbudget.components.mixers import attention, mixers
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor

BEFORE, AFTER = ("pre", "both"), ("post", "output", "both")
"""Norm placements with a norm before each part, and with one after it."""

OF_STATES = ("activation_bytes", "flops_backward", "peak_training_bytes")
"""Quantities whose formulas have the same operations after all parts."""

NORM_OF_OUTPUT = ("output", "both")
"""Those whose norm after a part reads its output, before it is added."""


class LayerFields(MLPFields, AttentionFields):
    parallel: bool = False
    shared_norm: bool = True
    norm_placement: Literal["pre", "post", "output", "both"] = "pre"


def all_parts() -> dict[str, Part]:
    """Every part that a layer can have, by its name."""
    return mixers() | feed_forward()


def fields_of_parts() -> Any:
    """Build a record with the fields of all parts, for families that find parts by folder."""
    records = dict.fromkeys(map(fields_of, (feed_forward() | mixers()).values()))
    fields = [record.model_fields.keys() for record in records]
    bases = [r for r in records if not any(r.model_fields.keys() < names for names in fields)]
    return create_model("PartFields", __base__=tuple(bases))


def parts(a: Fields) -> dict[str, Part]:
    """Return the parts that a model's patterns name, by name; always `mlp`, for n_dense_layer."""
    names = {*a.mixers.split(), *a.mlps.split(), "mlp"}
    return {name: component for name, component in all_parts().items() if name in names}


def component_name(name: str) -> str:
    return getattr(all_parts()[name], "NAME", name)


def n_layers(a: Fields) -> dict:
    """Count the layers that have each part, by name."""
    numbers = instances(a.mixers, a.n_layer) | instances(a.mlps, a.n_layer - a.n_dense_layer)
    numbers["mlp"] = a.n_dense_layer + numbers.get("mlp", 0)
    numbers.pop("none", None)
    return numbers


def has_formula(quantity: str, a: Fields, r: Run):
    """Return 1 where the parts of a model and the layer provide a formula, else 0.

    Peaks are known of layers with both parts. Full checkpointing of a layer without a feed-forward
    part ends elsewhere.
    """
    no_mixer, no_mlp = ("none" in pattern.split() for pattern in (a.mixers, a.mlps))
    missing = {
        "peak_training_bytes": no_mixer or no_mlp,
        "flops_backward": no_mlp and r.recompute == "full",
    }
    if missing.get(quantity):
        return 0
    holds = int(quantity in contract.FUNCTIONS)
    if quantity in OF_STATES:
        for option in ("moe_output_norm", "moe_bias"):
            holds = holds * (1 - getattr(a, option, 0))
    for component in parts(a).values() if holds else ():
        holds = holds * contract.has_formula(component, quantity, a, r)
    return holds


def parameters(a: Fields) -> Values:
    """Count the parameters of a layer of attention and MLP."""
    return {
        **sublayer(a, "attention", attention.parameters(a), norm.parameters(a)),
        **sublayer(a, "mlp", mlp.parameters(a), norm.parameters(a)),
        **shared_norm(a, norm.parameters(a)),
    }


def sublayer(a: Fields, name: str, values: Values, one_norm) -> Values:
    """Return the values of a part and of its norms, by component.

    One norm before (Radford et al. 2019, §2.3), one after (Vaswani et al. 2017, §3.1), or one at
    each end (Gemma 2, §2). Parallel parts may share theirs.
    """
    return {
        **{join(name, leaf): value for leaf, value in values.items()},
        f"norm.{name}": (1 - a.parallel * a.shared_norm) * one_norm,
        f"norm.{name}_output": has_output_norm(a, name) * one_norm,
    }


def has_output_norm(a: Fields, name: str):
    """Return 1 where the result of a part is normalised and the part reads normalised states."""
    both = int(a.norm_placement == "both")
    return both + (1 - both) * int(name == "moe") * getattr(a, "moe_output_norm", 0)


def shared_norm(a: Fields, one_norm) -> Values:
    """Return the value of the one norm of a parallel layer (PaLM, §2)."""
    return {"norm.shared": a.parallel * a.shared_norm * one_norm}


def in_layers(a: Fields, values: dict[str, Values], one_norm=0, second_norm=None) -> Terms:
    """Return the terms of all layers, from the values of each part, by name.

    `one_norm`: the value of a norm; `second_norm`: of the norm before a feed-forward part, where it
    differs.
    """
    n_layer = n_layers(a)
    terms: Terms = {}
    for name, of_part in values.items():
        norm_values = one_norm if second_norm is None or name in mixers() else second_norm
        of_sublayer = sublayer(a, component_name(name), of_part, norm_values)
        terms = merged(terms, part("layer", of_sublayer, n_layer[name]))
    return terms | part("layer", shared_norm(a, one_norm), a.n_layer)


def joins(r: Run) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the packed matrices: the component, the name of the matrix in it, its projections."""
    if r.projections == "gated_query":
        yield "attention", "query", GATED_QUERY
    elif r.projections != "separate":
        yield "attention", "query_key_value", PACKED
    if mlp.is_packed(r):
        yield "mlp", "gate_up", ("gate", "up")
        yield "moe", "shared.gate_up", ("shared.gate", "shared.up")
    if moe.is_packed(r):
        yield "moe", "gate_up", ("gate", "up")


def packed(r: Run, terms: Terms) -> Terms:
    """Return the terms with packed projections as one term."""
    for component, name, projections in joins(r):
        names = [f"layer.{component}.{projection}" for projection in projections]
        of_parts = [terms[path] for path in names if path in terms]
        if of_parts:
            joined = Term(sum(term.each for term in of_parts), of_parts[0].instances)
            terms = {path: term for path, term in terms.items() if path not in names}
            terms[f"layer.{component}.{name}"] = joined
    return terms


def all_matrices(a: Fields, r: Run) -> list[tuple[str, list[Matrix], Any]]:
    """Return the matrices of all layers: their place, those of one layer, and how many layers."""
    n_layer = n_layers(a)
    return [
        (f"layer.{component_name(name)}", matrices(a, r, name), n_layer[name]) for name in parts(a)
    ]


def matrices(a: Fields, r: Run, name: str) -> list[Matrix]:
    """Return the matrices of a part, those that are one in this run as one."""
    component = component_name(name)
    of_part = [m._replace(part=component) for m in all_parts()[name].matrices(a)]
    for place, joined, names in joins(r):
        if place != component:
            continue
        parts = [matrix for matrix in of_part if matrix.name in names]
        rows = sum(matrix.d_out * positive(matrix.n) for matrix in parts)
        of_part = [matrix for matrix in of_part if matrix.name not in names]
        of_part.append(parts[-1]._replace(name=joined, d_out=rows))
    return of_part


def tensors(a: Fields, group: LayerGroup) -> list[Tensor]:
    """Parameter tensors of one layer that get a gradient, in the order of the module."""
    names = [name for name in (group.mixer, group.feed_forward) if name != "none"]
    return [
        *(tensor for name in names for tensor in tensors_of(all_parts()[name], a)),
        *norm.tensors(a, "norm"),
        *norm.tensors(a, "norm", 1 - a.parallel * a.shared_norm),
        *(
            tensor
            for name in names
            for tensor in norm.tensors(a, "norm", has_output_norm(a, component_name(name)))
        ),
    ]
