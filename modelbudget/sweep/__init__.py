"""Sweep files: schema, expansion to points, and the checks before a run starts."""

from modelbudget.common.callable_package import make_callable

make_callable(__name__, "modelbudget.api.sweeping:sweep")
