"""The models of the project, which a process reads once."""

from copy import copy
from pathlib import Path

from helpers.project import ROOT
from modelbudget.catalogue.named_models import Catalogue
from modelbudget.workflow.chosen_sweeps import check_models

CATALOGUE = Catalogue(ROOT / "configs" / "models")


def catalogue_of(folder: Path) -> Catalogue:
    """Read a folder of models, unless it leads to those of the project."""
    if folder.resolve() != CATALOGUE.folder:
        return Catalogue(folder)
    named = copy(CATALOGUE)
    named.folder = folder
    return named


def check_other_models(catalogue: Catalogue) -> None:
    """Check models as a run does; those of the project `models/test_catalogue.py` checks."""
    if catalogue.bases is not CATALOGUE.bases:
        check_models(catalogue)
