"""Suggestions for unknown names: names that are similar, or that mean the same in other tools.

`configs/field_names.yaml` holds the names of fields in other tools, `names_without_setting.yaml`
names of trainers that are no field. They are read only when a message needs a suggestion.
"""

import heapq
from collections.abc import Collection, Iterable
from difflib import SequenceMatcher
from functools import cache
from itertools import takewhile

from pydantic import ConfigDict, TypeAdapter, ValidationError

from modelbudget.common.errors import InputError
from modelbudget.common.files import load_yaml
from modelbudget.common.paths import CONFIGS

FIELD_NAMES = CONFIGS / "field_names.yaml"
WITHOUT_SETTING = CONFIGS / "names_without_setting.yaml"
MAX_LISTED = 200
"""Characters of the longest list of names that a message gives in full."""
MOST_NEAREST = 5
CUTOFF = 0.7
SAME_WORD = 0.9
"""Similarity from which a name is taken for a misspelling of another."""
PER_LETTER, MOST_LETTERS = 0.15, 4
"""Bonus for each equal leading letter, and how many letters count: `gpt-2-small` is closer to
`gpt-2` than to `t5-small`. Winkler (1990), with a larger bonus.
"""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return '; did you mean n_vocab?' if a known name is similar, else an empty string."""
    near = nearest(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def unknown_field(name: str, known: Collection[str], rest: str) -> str:
    """Return 'unknown field; did you mean …', or why a name of a trainer has no field."""
    if answer := without_setting(name):
        return f"no setting: {answer}"
    return f"unknown field{offered(name, known, rest)}"


def without_setting(name: str) -> str | None:
    """Return what to do in place of a name of a trainer or an engine that has no field."""
    return _without_setting().get(_plain(name))


def offered(name: str, known: Collection[str], rest: str, n_first: int = 0) -> str:
    """Return '; did you mean n_vocab? (allowed: …)'.

    Lists every known name if they are few or in no other place; otherwise the most similar ones, or
    without any the first `n_first`, and that the others are in `rest`.
    """
    listed = ", ".join(known)
    near = nearest(name, known, MOST_NEAREST)
    if rest and len(listed) > MAX_LISTED:
        more = f"all {len(known):,} are in {rest}"
        some = near or [*known][:n_first]
        listed = f"{', '.join(some)}; {more}" if some else more
    return f"{f'; did you mean {near[0]}?' if near else ''} (allowed: {listed})"


def nearest(name: str, known: Iterable[str], n: int, cutoff: float = CUTOFF) -> list[str]:
    """Return at most `n` known names that are synonyms of `name` or similar to it, best first."""
    wanted = _plain(name)
    meant = _meanings(wanted)
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)

    def nearness(other_name: str) -> float:
        written = _plain(other_name)
        if written == wanted:
            return 3
        if meant & _meanings(written):
            return 2
        same = zip(written[:MOST_LETTERS], wanted, strict=False)
        share = PER_LETTER * sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], same))
        needed = (cutoff - share) / (1 - share)
        matcher.set_seq1(written)
        if matcher.real_quick_ratio() < needed or matcher.quick_ratio() < needed:
            return 0
        return share + (1 - share) * matcher.ratio()

    by_nearness = ((nearness(name), -place, name) for place, name in enumerate(known))
    near = heapq.nlargest(n, (candidate for candidate in by_nearness if candidate[0] >= cutoff))
    return [other_name for *_, other_name in near]


def other_spelling(name: str, known: Iterable[str]) -> str | None:
    """Return the known name of which a name is a synonym or a misspelling; None if of none."""
    return next(iter(nearest(name, known, 1, SAME_WORD)), None)


@cache
def field_names() -> dict[str, dict[str, list[str]]]:
    """Return field → tool → its names for the field. Raises InputError with every mistake."""
    adapter = TypeAdapter(dict[str, dict[str, list[str]]], config=ConfigDict(strict=True))
    try:
        return adapter.validate_python(load_yaml(FIELD_NAMES))
    except ValidationError as error:
        at = [(".".join(map(str, of["loc"])), of["input"], of["msg"]) for of in error.errors()]
        lines = [f"{FIELD_NAMES}: {place} = {value!r}: {why}" for place, value, why in at]
        raise InputError(lines) from None


@cache
def _without_setting() -> dict[str, str]:
    """Return plain names of trainers that are no field → what a reader does instead."""
    answers = load_yaml(WITHOUT_SETTING)
    return {_plain(name): answer for answer, names in answers.items() for name in names}


def _meanings(name: str) -> frozenset[str]:
    """Return the names here that a plain name may stand for, itself included."""
    return _by_name().get(name, frozenset()) | {name}


@cache
def _by_name() -> dict[str, frozenset[str]]:
    """Return plain name elsewhere → plain names of fields."""
    fields: dict[str, frozenset[str]] = {}
    for field, tools in field_names().items():
        for synonym in map(_plain, (name for names in tools.values() for name in names)):
            fields[synonym] = fields.get(synonym, frozenset()) | {_plain(field)}
    return fields


def _plain(name: str) -> str:
    """Remove case and punctuation from a name."""
    return "".join(filter(str.isalnum, name.casefold()))
