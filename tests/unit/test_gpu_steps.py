"""Steps between two readings of a GPU: exact where the readings themselves are not."""

from helpers.gpu_steps import CLOSE, gpu_steps, steps


def test_steps_between_long_prompts_are_those_of_the_cache(catalogue):
    """Only this holds the cache's formula against memory that a GPU really took."""
    found = steps(gpu_steps(), catalogue)
    assert len(found) == 40
    for step in found:
        assert step.is_equal == (not step.series.differs), step
    others = [step for step in found if step.series.weights != "AWQ-INT4"]
    assert (len(others), sum(step.is_equal for step in others)) == (32, 31)


def test_a_step_with_one_layer_more_is_seen(catalogue):
    """The bound is far below the cache of one layer."""
    for step in steps(gpu_steps(), catalogue):
        n_layer = catalogue[step.series.base].fields["n_layer"]
        assert step.predicted // n_layer > 15 * CLOSE
