"""Parameter tensors of a layer, and matrices that a run packs into one."""

from modelbudget.architecture.arithmetic import positive
from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.layer_groups import LayerGroup
from modelbudget.architecture.terms import Term, Terms
from modelbudget.components import norm
from modelbudget.components.attention.attention_fields import PACKED
from modelbudget.components.contract import tensors_of
from modelbudget.components.feed_forward import mlp, moe
from modelbudget.components.layers.layer_parts import all_parts, component_name
from modelbudget.components.weight_formats import Matrix
from modelbudget.memory.parameter_tensors import Tensor


def joins(r: Run) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the name and the parts of what is one matrix in this run, by component."""
    joined = {}
    if r.projections != "separate":
        joined["attention"] = "query_key_value", PACKED
    if mlp.is_packed(r):
        joined["mlp"] = "gate_up", ("gate", "up")
    if moe.is_packed(r):
        joined["moe"] = "gate_up", ("gate", "up")
    return joined


def packed(r: Run, terms: Terms) -> Terms:
    """Return the terms with projections that are one matrix as one."""
    for component, (name, parts_of_one) in joins(r).items():
        names = [f"layer.{component}.{one}" for one in parts_of_one]
        of_parts = [terms[one] for one in names if one in terms]
        if of_parts:
            joined = Term(sum(term.each for term in of_parts), of_parts[0].instances)
            terms = {one: term for one, term in terms.items() if one not in names}
            terms[f"layer.{component}.{name}"] = joined
    return terms


def matrices(a: Fields, r: Run, name: str) -> list[Matrix]:
    """Return the matrices of a part, those that are one in this run as one."""
    all_matrices = all_parts()[name].matrices(a)
    for joined, names in filter(None, [joins(r).get(component_name(name))]):
        parts = [matrix for matrix in all_matrices if matrix.name in names]
        rows = sum(matrix.d_out * positive(matrix.n) for matrix in parts)
        all_matrices = [matrix for matrix in all_matrices if matrix.name not in names]
        all_matrices.append(parts[-1]._replace(name=joined, d_out=rows))
    return all_matrices


def tensors(a: Fields, group: LayerGroup) -> list[Tensor]:
    """Parameter tensors of one layer that get a gradient, in the order of the module."""
    n_after = 2 if a.norm_placement == "both" else 0
    return [
        *(
            tensor
            for name in (group.mixer, group.feed_forward)
            if name != "none"
            for tensor in tensors_of(all_parts()[name], a)
        ),
        *norm.tensors(a, "norm"),
        *norm.tensors(a, "norm", 1 - a.parallel * a.shared_norm),
        *n_after * norm.tensors(a, "norm"),
    ]
