"""What PEFT adapts of classes of transformers otherwise than of our modules, as data."""

from modelbudget.architecture.adapter_methods import ALL_BUT_EXPERTS, ALL_LINEAR, EXPERTS, ROUTER
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, shipped

OF_EXPERTS = ("gate", "up", "down")
"""Targets that PEFT moves to stacked experts which it reaches, if all of them are given."""


class PeftClasses(Strict):
    """Model types of which PEFT adapts several matrices as one, or other layers than of ours."""

    packed: dict[str, list[str]]
    divided_otherwise: list[str]
    experts_reached: list[str]
    all_linear: dict[str, list[str]]
    routers_refused: list[str]
    mixers_refused: list[str]
    steps_unread: list[str]
    lines: dict[str, str]

    def settings_of(self, model_type: str) -> dict[str, str]:
        """Return the settings with which our modules have the matrices of a class."""
        texts = (text for text, types in self.packed.items() if model_type in types)
        return dict(setting.split("=") for text in texts for setting in text.split(", "))

    def reaches_experts(self, model_type: str, targets: list[str]) -> bool:
        """Whether PEFT adapts stacked experts, or a router, of a class by these targets."""
        types = self.experts_reached, self.routers_refused, *self.all_linear.values()
        has_stacks = any(model_type in of_kind for of_kind in types)
        of_stacks = {EXPERTS, ROUTER, ALL_LINEAR, *OF_EXPERTS} & {*targets}
        return bool({EXPERTS, ROUTER} & {*targets}) or (has_stacks and bool(of_stacks))

    def has_no_setting(self, model_type: str, targets: list[str]) -> bool:
        """Whether PEFT adapts one stack of experts of a class by these targets, or refuses them."""
        return model_type in self.experts_reached and 0 < len({*OF_EXPERTS} & {*targets}) < 3

    def targets_of(self, model_type: str, targets: list[str]) -> list[str]:
        """Return the targets that PEFT has of a class with experts where `targets` are given."""
        is_reached = model_type in self.experts_reached
        if ALL_LINEAR in targets:
            default = ALL_LINEAR if is_reached else ALL_BUT_EXPERTS
            texts = (text for text, types in self.all_linear.items() if model_type in types)
            return next(texts, default).split()
        if is_reached and {*OF_EXPERTS} <= {*targets}:
            return [*(name for name in targets if name not in OF_EXPERTS), EXPERTS]
        return targets


peft_classes = shipped(CONFIGS / "peft_classes.yaml", PeftClasses)
