"""Values of all layers by component, from the values of each part."""

from modelbudget.architecture.formula_arguments import Fields
from modelbudget.architecture.terms import Terms, join, merged, part
from modelbudget.components import norm
from modelbudget.components.contract import Values
from modelbudget.components.feed_forward import mlp
from modelbudget.components.layers.layer_parts import component_name, n_layers
from modelbudget.components.mixers import attention, mixers


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
        f"norm.{name}_output": int(a.norm_placement == "both") * one_norm,
    }


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
        held = sublayer(a, component_name(name), of_part, norm_values)
        terms = merged(terms, part("layer", held, n_layer[name]))
    return terms | part("layer", shared_norm(a, one_norm), a.n_layer)
