"""What PEFT adapts of classes of transformers otherwise than of our modules, as data."""

from functools import cache

from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, read_strict


class PeftClasses(Strict):
    """Model types whose matrices PEFT adapts several in one, and those whose experts it reaches."""

    packed: dict[str, list[str]]
    experts_reached: list[str]

    def settings_of(self, model_type: str) -> dict[str, str]:
        """Return the settings with which our modules have the matrices of a class."""
        texts = (text for text, types in self.packed.items() if model_type in types)
        return dict(setting.split("=") for text in texts for setting in text.split(", "))


@cache
def peft_classes() -> PeftClasses:
    """Return `configs/peft_classes.yaml`. Raises InputError."""
    return read_strict(CONFIGS / "peft_classes.yaml", PeftClasses)
