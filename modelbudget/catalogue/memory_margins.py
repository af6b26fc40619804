"""What a run may need beyond its predicted peak: reads `configs/memory_margins.yaml`."""

from typing import Literal

from pydantic import Field

from modelbudget.architecture.base import Size
from modelbudget.catalogue.accelerators import Platform
from modelbudget.common.byte_sizes import AS_GIVEN
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, shipped

Grade = Literal["fits", "tight", "does not fit"]


class Reserve(Strict):
    """Bytes of a device that hold no tensors."""

    bytes: Size
    source: str = Field(min_length=1)


class WorstRatio(Strict):
    """What a reading was, or would have had to be, over its prediction, at most."""

    value: float = Field(ge=1)
    source: str = Field(min_length=1)


class Margins(Strict):
    """What `fit` leaves free."""

    reserve: Reserve
    reserve_by_platform: dict[Platform, Reserve]
    worst_ratio: WorstRatio
    expandable_segments: WorstRatio

    def on(self, platform: Platform, n_bytes: int | None) -> "Margins":
        """Return the margins of a platform, with a reserve of `n_bytes` if one is given.

        The reserve may be 0.
        """
        reserve = self.reserve_by_platform.get(platform, self.reserve)
        if n_bytes is not None:
            reserve = Reserve(bytes=n_bytes, source=AS_GIVEN)
        return self.model_copy(update={"reserve": reserve})

    def room(self, memory: int) -> int:
        """Return the largest prediction that fits with the reserve and the worst ratio."""
        return max(int((memory - self.reserve.bytes) / self.worst_ratio.value), 0)

    def with_expandable_segments(self) -> "Margins":
        """Return the margins of an allocator whose segments grow."""
        return self.model_copy(update={"worst_ratio": self.expandable_segments})

    def grade(self, n_bytes: int, memory: int) -> Grade:
        """Return whether a prediction fits into memory with the margins, without, or not at all."""
        if n_bytes > memory:
            return "does not fit"
        return "fits" if n_bytes <= self.room(memory) else "tight"


memory_margins = shipped(CONFIGS / "memory_margins.yaml", Margins, Reserve, WorstRatio)
