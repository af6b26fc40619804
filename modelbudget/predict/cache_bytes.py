"""Caches in other formats and layouts than those of our modules, of one model."""

from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.terms import Terms
from modelbudget.predict.of_program import terms_by_program
from modelbudget.serving.cache_layouts import cache_terms
from modelbudget.serving.kinds import Kind, kinds_of


def is_of_engine(r) -> bool:
    """Whether the cache has another format or layout than that of our modules."""
    return r.cache_dtype != "dtype" or r.cache_layout != "contiguous"


def kinds(a: Architecture, run: RunConfig) -> list[Kind]:
    """Return what the layers of a model keep. Raises ValueError if no formula covers it."""

    def terms(run: RunConfig) -> Terms:
        if type(a).has_formula_for("cache_bytes", a, run):
            return type(a).cache_bytes(a, run)  # pyright: ignore[reportAttributeAccessIssue]
        found = terms_by_program("cache_bytes", a, run)
        if found is None:
            raise ValueError("no formula covers the cache of these layers")
        return found

    return kinds_of(a, run, terms)


def terms_of_engine(a: Architecture, run: RunConfig) -> Terms | None:
    """Return the bytes of the cache of `batch` sequences; None where they are not known."""
    try:
        return cache_terms(kinds(a, run), run)
    except ValueError:
        return None


def why_not_of_engine(a: Architecture, run: RunConfig) -> str | None:
    """Return why the bytes are not known; None if they are."""
    try:
        cache_terms(kinds(a, run), run)
    except ValueError as error:
        return str(error)
    return None
