"""Content of a sweep file with ranges written out: results/SWEEP/sweep.json."""

import hashlib
import json

from modelbudget.common.errors import InputError
from modelbudget.sweeps.expand import Expanded
from modelbudget.sweeps.sweep_file import Sweep


def summary(expanded: Expanded) -> dict:
    """Return the sweep file with ranges written out, the swept fields and dropped points."""
    return resolved(expanded.name, expanded.sweep) | {
        "points": len(expanded.points),
        "dropped": expanded.dropped,
        "swept_fields": swept_fields(expanded),
        "notes": expanded.notes,
    }


def swept_fields(expanded: Expanded) -> list[str]:
    """Return the fields that the sweep varies, in the order of its file."""
    return list(dict.fromkeys(name for point in expanded.points for name in point.axes))


def resolved(name: str, sweep: Sweep) -> dict:
    """Return the values of a sweep file with ranges written out."""
    keys = sweep.model_dump(exclude={"grid", "models", "points", "default"})
    return {"name": name, **keys, "axes": sweep.axes()}


def content(expanded: Expanded) -> str:
    """Return a digest of a sweep's points and file: of everything that its jobs read."""
    digest = hashlib.sha256(json.dumps(summary(expanded)).encode())
    for point in expanded.points:
        of_point = (point.point, point.label, point.base, point.transformers, point.config)
        digests = (point.architecture.digest(), point.run.digest())
        digest.update(json.dumps([*of_point, *digests]).encode())
    return digest.hexdigest()[:16]


def check_planned(expanded: Expanded, planned: str) -> None:
    """Raise InputError if a sweep has changed since the run was planned."""
    if content(expanded) != planned:
        changed = "it, or a model in it, changed after the run had started; run again"
        raise InputError([f"{expanded.path}: {changed}"])
