"""What is live at a peak, by hand: allocations, frees, and what they are said to be for."""

from modelbudget.measurement.trace.bytes_at_peak import at_peak


def test_the_last_of_equal_peaks_counts():
    changes = [(1, 10), (2, 5), (2, None), (3, 5), (1, None), (3, None)]
    assert at_peak(changes, [(1, 1, "parameters")]) == {"parameters": 10, "temporary": 5}
    marks = [(1, 1, "parameters"), (2, 2, "gradients"), (4, 3, "activations.head")]
    assert at_peak(changes, marks) == {"parameters": 10, "activations.head": 5}


def test_a_mark_is_of_the_storage_that_is_live_then():
    """Keys are used again. A mark may come after the peak; one of a freed storage is none."""
    changes = [(1, 7), (1, None), (1, 9), (2, 3), (2, None)]
    marks = [(1, 1, "parameters"), (2, 1, "gradients"), (5, 1, "optimizer_states")]
    assert at_peak(changes, marks) == {"optimizer_states": 9, "temporary": 3}


def test_the_first_kind_counts_and_the_first_component_that_saves():
    changes = [(1, 1), (2, 2), (3, 4)]
    marks = [
        (3, 1, "communication_buffers"), (3, 1, "activations.layer.mlp"), (3, 1, "gradients"),
        (3, 2, "activations.layer.norm"), (3, 2, "activations.layer.mlp"),
        (3, 3, "communication_buffers"), (3, 3, "gathered_parameters"),
    ]  # fmt: skip
    expected = {"gradients": 1, "gathered_parameters": 4, "activations.layer.norm": 2}
    assert at_peak(changes, marks) == expected


def test_nothing_is_live_without_allocations():
    assert at_peak([], []) == {}
