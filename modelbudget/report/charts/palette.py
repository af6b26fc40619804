"""Every colour of the charts by name, for a light and a dark background."""

from modelbudget.components.groups import GROUPS

PALETTE = {
    "ink": ("#1d2329", "#e9e6df"),
    "soft": ("#5a626b", "#a8adb3"),
    "line": ("#d9dade", "#3a4047"),
    "paper": ("#ffffff", "#15181c"),
    "differs": ("#8a5a00", "#e3b04b"),
    "bad": ("#b3261e", "#ff8a80"),
} | {f"group-{i}": (g.light, g.dark) for i, g in enumerate(GROUPS.values())}
"""Name → light and dark colour. Charts use the light ones; the page replaces them by name."""
