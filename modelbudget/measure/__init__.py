"""Measurements on real torch modules. No formula is read here."""

from modelbudget.common.callable_package import make_callable

make_callable(__name__, "modelbudget.api.measuring:measure")
