"""Models with fewer layers than they have, whose runs cost less."""

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake

MOST_LAYERS = 8


def of_few_layers(a: Architecture, run: RunConfig) -> Architecture:
    """As deep as it is where less depth cannot be run, and where devices share layers."""
    if getattr(a, "n_layer", 0) <= MOST_LAYERS or run.pipeline_parallel > 1:
        return a
    depths = [name for name in ("n_layer", "n_distinct") if getattr(a, name, 0) == a.n_layer]
    shallow = type(a)(**a.model_dump() | dict.fromkeys(depths, MOST_LAYERS))
    return a if run_mistake(shallow, run) else shallow
