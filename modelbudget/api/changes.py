"""Changes of a run that need less memory (`configs/memory_changes.yaml`), predicted."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from modelbudget.api.chosen_model import ChosenModel
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_config import RunConfig
from modelbudget.architecture.run_constraints import run_mistake
from modelbudget.catalogue.accelerators import Accelerator
from modelbudget.common.errors import InputError
from modelbudget.common.expressions import Expression
from modelbudget.common.paths import CONFIGS
from modelbudget.common.strict import Strict, shipped

Pair = tuple[Architecture, RunConfig]
PairWith = Callable[[Mapping[str, Any]], Pair]
"""What runs with some fields. Raises InputError where nothing does."""
Purpose = Literal["training", "inference"]


class Candidate(Strict):
    """A change of a run, where it applies; see the file."""

    text: str
    when: str
    set: dict[str, bool | int | str] = Field(min_length=1)
    alters: bool = False
    on_cuda: bool = False
    purpose: Purpose = "training"

    def fields(self, run: RunConfig) -> dict[str, bool | int | str]:
        """Return the fields that the change sets in a run."""
        numbers = type(run).numeric()
        return {
            name: getattr(run, value) if value in numbers else value
            for name, value in self.set.items()
        }


class Candidates(Strict):
    changes: list[Candidate]


candidates = shipped(CONFIGS / "memory_changes.yaml", Candidates)


class MemoryChange(NamedTuple):
    """One change or several: what it sets, the peak of the run with it, and what that is less.

    `largest` are the largest batch and, of one sequence, the largest length with it.
    """

    text: str
    fields: dict[str, bool | int | str]
    needed: int
    saves: int
    alters: bool
    largest: dict[str, int] | None = None
    largest_with_margins: dict[str, int] | None = None


def changes(
    model: ChosenModel,
    step: "Step",
    chosen: Mapping[str, Any],
    device: Accelerator,
    room_with_margins: int,
) -> tuple[list[MemoryChange], MemoryChange | None]:
    """Return what needs less memory than a run, the most helpful first, and several together.

    These are as many as it takes a training step to fit with margins, those first that alter
    nothing; others are among them only if it takes them to fit the device at all, and none that
    the others do without. Changes of inference set one field, its weights, so that none go
    together.
    """
    architecture, run = step.pair(chosen)
    now = step.needed(chosen)
    if now is None:
        return [], None
    kept = {**chosen, "batch": run.batch, "length": run.length}
    of_both, applicable = vars(architecture) | vars(run), []
    for candidate in _offered(model, step.purpose):
        if candidate.on_cuda and device.platform != "cuda":
            continue
        if "bfloat16" in candidate.set.values() and not device.has_flash:
            continue
        condition = Expression(candidate.when)
        if condition.names <= of_both.keys() and condition(of_both):
            fields = candidate.fields(run)
            n_bytes = step.needed({**kept, **fields})
            if n_bytes is not None:
                applicable.append(
                    MemoryChange(candidate.text, fields, n_bytes, now - n_bytes, candidate.alters)
                )
    helpful = sorted(
        (change for change in applicable if change.saves > 0), key=lambda change: change.needed
    )
    if step.purpose == "inference":
        return helpful, None
    return helpful, _together(step, kept, applicable, now, (device.bytes, room_with_margins))


def _offered(model: ChosenModel, purpose: str) -> Iterator[Candidate]:
    """Yield the changes of a purpose, and the format in which the weights were released."""
    yield from (candidate for candidate in candidates().changes if candidate.purpose == purpose)
    released = model.base.released_weights
    if purpose == "inference" and released:
        yield Candidate(text="weights as released", when="weights = 'dtype'",
                        set={"weights": released}, on_cuda=True)  # fmt: skip


def _together(
    step: "Step", kept: Mapping[str, Any], applicable: list[MemoryChange], now: int,
    rooms: tuple[int, int],
) -> MemoryChange | None:  # fmt: skip
    """Return the changes that help one after the other; None if one is enough at once.

    `rooms`: bytes without and with margins. In the end those are left out without which a run still
    fits with margins, or needs no more: what alters something first, then what helps least.
    """
    of_changes, fields, least = dict[str, MemoryChange](), dict[str, Any](), now
    waiting, unhelpful = sorted(applicable, key=_turn), list[MemoryChange]()
    while waiting:
        change = waiting.pop(0)
        if least <= rooms[not change.alters]:
            break
        n_bytes = step.needed({**kept, **fields, **change.fields})
        if n_bytes is None or n_bytes >= least:
            unhelpful.append(change)
            continue
        fields |= change.fields
        least = n_bytes
        instead = (x for x, of in of_changes.items() if of.fields.items() <= change.fields.items())
        for text in [*instead]:
            del of_changes[text]
        of_changes[change.text] = change
        if change.alters:  # of another peak: checkpointing helps where states are few
            waiting, unhelpful = sorted([*unhelpful, *waiting], key=_turn), []
    if len(of_changes) < 2:
        return None
    room = max(least, rooms[1])
    for change in sorted(of_changes.values(), key=_turn, reverse=True):
        others = [other for other in of_changes.values() if other is not change]
        of_others = {name: value for other in others for name, value in other.fields.items()}
        n_bytes = step.needed({**kept, **of_others})
        if n_bytes is not None and n_bytes <= room:
            fields, least = of_others, n_bytes
            of_changes = {other.text: other for other in others}
    alters = any(change.alters for change in of_changes.values())
    largest = [step.largest({**kept, **fields}, room) for room in rooms]
    return MemoryChange(", ".join(of_changes), fields, least, now - least, alters, *largest)


def _turn(change: MemoryChange) -> tuple[bool, int]:
    """Return a rank: what alters something is last, in the order of the file, LoRA before QLoRA."""
    return change.alters, 0 if change.alters else change.needed


class Step(ABC):
    """What is predicted of a step on a device, by the fields of its run.

    `pair`: the architecture and the run with fields, and with what the device decides.
    """

    def __init__(self, pair: PairWith, purpose: Purpose):
        self.pair, self.purpose = pair, purpose

    @abstractmethod
    def needed(self, fields: Mapping[str, Any]) -> int | None:
        """Return the bytes at the peak; None if the fields are not allowed, or have no formula."""

    @abstractmethod
    def largest(self, fields: Mapping[str, Any], room: int) -> dict[str, int]:
        """Return the largest batch and, of one sequence, the largest length that fit the bytes."""

    def allowed_pair(self, fields: Mapping[str, Any]) -> Pair | None:
        """Return the architecture and the run; None if they are not allowed."""
        try:
            pair = self.pair(fields)
        except InputError:
            return None
        return None if run_mistake(*pair) else pair


class StepOfModel(Step):
    """A step of one model."""

    def needed(self, fields: Mapping[str, Any]) -> int | None:
        from modelbudget.predict.largest_that_fits import needed
        from modelbudget.sweeps.not_with_quantised_weights import refused

        pair, quantity = self.allowed_pair(fields), f"peak_{self.purpose}_bytes"
        if pair is None or quantity in refused(*pair, {quantity}):
            return None
        return needed(pair, self.purpose)

    def largest(self, fields: Mapping[str, Any], room: int) -> dict[str, int]:
        from modelbudget.predict.largest_that_fits import solved

        solutions = solved(self.pair(fields), self.purpose, room)
        return {field: solution.value for field, solution in solutions.items()}
