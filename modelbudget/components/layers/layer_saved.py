"""Bytes that layers save for backward, or hold through forward and backward."""

from modelbudget.architecture.formula_arguments import Fields, Run
from modelbudget.architecture.run_values import computed_again, of_states
from modelbudget.architecture.terms import Term, Terms, merged
from modelbudget.components import embedding_step, norm
from modelbudget.components.attention.model_tables import model_positions, model_tables
from modelbudget.components.layers.by_component import in_layers
from modelbudget.components.layers.layer_fields import BEFORE
from modelbudget.components.layers.layer_parts import parts
from modelbudget.components.layers.layer_states import place_of, states_bytes


def saved_of_second_norm(a: Fields, r: Run):
    """Return the bytes saved by the norm before a feed-forward part.

    In a parallel layer, the mixer's norm has saved the input, unless each saves a copy of its own.
    """
    r = of_states(r)
    return norm.saved(a, r) - a.parallel * (1 - norm.copies_input(a, r)) * states_bytes(a, r)


def saved(a: Fields, r: Run) -> Terms:
    """Bytes saved for backward by all layers, without full checkpointing."""
    of_parts = {
        name: component.saved(a, r, place_of(a, r, name)) for name, component in parts(a).items()
    }
    terms = in_layers(a, of_parts, norm.saved(a, of_states(r)), saved_of_second_norm(a, r))
    tables = model_tables(a, r)
    return merged(terms, {"layer.attention": Term(tables)}) if r.rope_tables == "model" else terms


def held_in_forward(a: Fields, r: Run):
    """Bytes of positions and embeddings that only the forward pass holds."""
    positions = (1 - computed_again(r)) * model_positions(a, r, r.length)
    return positions + embedding_step.held_apart(a, r)


def first_input_held(a: Fields, r: Run):
    """Bytes of the first layer's input where later layers hold it, too, and nothing saves it."""
    unsaved = int(a.norm_placement in BEFORE) * norm.copies_input(a, r) * states_bytes(a, r)
    return (1 - computed_again(r)) * embedding_step.is_held_input(a, r) * unsaved


def held(a: Fields, r: Run):
    """Return the bytes that layers hold through forward and backward and that no operation saves.

    Arguments of layers that are computed again: tables of RoPE, and the positions.
    """
    return computed_again(r) * read_by_all(a, r)


def read_by_all(a: Fields, r: Run):
    """Return the bytes that all layers read: tables of RoPE and positions, made before them."""
    return model_tables(a, r) + model_positions(a, r, r.length)
