"""The models of the project, which a process reads once."""

from helpers.project import ROOT
from modelbudget.catalogue.named_models import Catalogue

CATALOGUE = Catalogue(ROOT / "configs" / "models")
