"""What the pipeline leaves of built modules, as the tests of the page need it."""

import json
from pathlib import Path

import torch

from modelbudget.catalogue.named_models import Catalogue
from modelbudget.measurement.trace.module_tree import tree
from modelbudget.measurement.trace.walkthrough import walkthrough
from modelbudget.sweeps.derive import named_architecture
from modelbudget.sweeps.expand import expand


def printed_modules(path: Path, catalogue: Catalogue) -> dict[str, str]:
    """The modules of a sweep as torch prints them."""
    points = expand(path, catalogue).points
    with torch.device("meta"):
        return {p.architecture.digest(): repr(p.architecture.build()) for p in points}


def walkthroughs(path: Path, catalogue: Catalogue) -> dict[str, dict]:
    """Shapes, real sizes and torch's own modules of a sweep, as the file holds them."""
    points = expand(path, catalogue).points
    found = {p.architecture.digest(): walkthrough(p.architecture) for p in points}
    return json.loads(json.dumps(found))


def module_trees(catalogue: Catalogue, *names: str) -> list[dict]:
    with torch.device("meta"):
        built = {name: named_architecture(catalogue[name]).build() for name in names}
    found = [
        {"model": name, "label": catalogue[name].label, "tree": tree(model)}
        for name, model in built.items()
    ]
    return json.loads(json.dumps(found))  # as the file holds them
