"""A log with the model and the run that it names, or that a user does, and one of its numbers."""

from collections.abc import Iterable
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple, cast

from modelbudget.api.explained import Line, Verdict, gib, judged, model_of
from modelbudget.api.gguf import GgufFile
from modelbudget.api.gguf_of_log import file_of, has_these_types, model_of_llama_cpp
from modelbudget.api.model import Model
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_adapter import OF_ADAPTER
from modelbudget.architecture.run_config import RunConfig
from modelbudget.common.byte_sizes import UNITS
from modelbudget.files.log_lines import Log, Number
from modelbudget.predict.engine_weights import SHARES, with_stored_experts


class LogContext:
    """A log with the model and the run that it names, or that a user does."""

    def __init__(self, log: Log, model: str | None, chosen: dict[str, Any]):
        self.log, self.chosen = log, chosen
        self.model: Model | None = model_of(model, log.settings.get("model"), chosen)
        if self.model is None and log.metadata:
            self.model = model_of_llama_cpp(log)
        self.asked: list[str] = []
        self.asks_dtype = False
        self.pair = self._with_run(self.model) if self.model else None

    def _with_run(self, model: Model) -> tuple[Architecture, RunConfig]:
        of_run = ("dtype", "cache_dtype", "draft_head")
        of_log = {name: text for name, text in self.log.settings.items() if name in of_run}
        base = {**model.base.fields, **model.base.derive, **self.chosen, **of_log}
        weights = model.base.released_weights or self.log.settings.get("weights")
        if weights and "weights" not in base:
            of_log["weights"] = weights
        if "dtype" not in base:
            of_log["dtype"] = "bfloat16"
            self.asks_dtype = True
        fields = RunConfig.model_fields.keys()
        if "adapter" not in self.chosen:  # they are those of the adapter that the log counts
            fields -= {*OF_ADAPTER}
        settings = {name: value for name, value in self.chosen.items() if name in fields}
        shares: dict[str, int] = {
            name: settings.pop(name, None) or self.number(name) or 1 for name in SHARES
        }
        if "whole_experts" in self.log.settings:
            shares["expert_parallel"] = shares["tensor_parallel"] * shares["data_parallel"]
        architecture, run = model.with_run({**of_log, "cache_layout": "paged", **settings})
        run = with_stored_experts(architecture, run)
        return architecture, run.model_copy(update=shares)

    @cached_property
    def recipe(self) -> GgufFile | None:
        """The .gguf file that llama.cpp writes of the model in the format that the log prints."""
        return file_of(self.model, self.log) if self.model else None

    @property
    def file(self) -> GgufFile | None:
        """The .gguf file of the log, if it has the types of that recipe."""
        recipe = self.recipe
        return recipe if recipe and has_these_types(recipe, self.log) else None

    def number(self, name: str) -> int | None:
        """Return a setting of the log that is a number."""
        text = self.log.settings.get(name, "")
        return int(text) if text.isdecimal() else None

    def of(self, quantity: str) -> Number | None:
        return next((number for number in self.log.numbers if number.quantity == quantity), None)

    def ask(self, text: str) -> None:
        """Note what the file does not say."""
        if text not in self.asked:
            self.asked.append(text)


class Reading(NamedTuple):
    """A number of a log that is to be explained, with what the log says beside it."""

    context: LogContext
    number: Number

    @property
    def model(self) -> Model:
        """The model of the log; there is one where the number's formula needs it."""
        return cast(Model, self.context.model)

    @property
    def name(self) -> str:
        """What the log calls the number, else its quantity."""
        return " ".join(self.number.name.split()) or self.number.quantity

    def setting(self, name: str) -> str | None:
        """Return a setting of the number's line, else of the log."""
        return self.number.settings.get(name) or self.context.log.settings.get(name)

    def count(self, name: str) -> int | None:
        """Return a setting that is a number."""
        text = self.setting(name)
        return int(text) if text and text.isdecimal() else None

    @property
    def printed(self) -> str:
        """The number with its unit, as the log has it."""
        is_count = self.number.unit in ("x", "parameters", "tokens", "blocks", "tensors")
        return self.number.text if is_count else f"{self.number.text} {self.number.unit}"

    def line(
        self, name: str, explained: str, verdict: Verdict, n_bytes: int = 0, unexplained: int = 0
    ) -> Line:
        """Return the line of the number, as `Line` has it."""
        return Line(name, self.printed, explained, verdict, n_bytes, unexplained, self.number.line)

    def of_itself(self, name: str, explained: str, verdict: Verdict) -> Line:
        """Return a line about the bytes that are printed, if the number has a unit of bytes."""
        n_bytes = self.number.n_bytes if self.number.unit in UNITS else 0
        return self.line(name, explained, verdict, n_bytes)

    def read(self) -> Line:
        """Return the line of a number that no formula is about."""
        return self.of_itself(self.name, "of the tool itself", "read")

    def asked(self, name: str, what: str) -> Line:
        """Ask for what the log does not say, and without which no formula is about the number."""
        self.context.ask(what)
        return self.of_itself(name, "", "asked")

    def compared(
        self, name: str, explained: str, is_exact: bool, n_bytes: int = 0, unexplained: int = 0
    ) -> Line:
        """Return the line of a number that is explained as a whole, or not."""
        if is_exact:
            return self.line(name, explained, "exact", n_bytes)
        return self.line(name, explained, "unexplained", n_bytes, unexplained)

    def judged(self, name: str, *terms: tuple[str, int]) -> Line:
        """Return the line of a number in bytes, and of the terms that a formula says it has."""
        of = self.number
        return judged(name, of.n_bytes, list(terms), self.printed, of.rounding, of.line)

    def judged_within(
        self,
        name: str,
        terms: list[tuple[str, int]],
        parts: list[tuple[str, int]],
        *others: tuple[str, int],
    ) -> Line:
        """Return the line of a number that may have further terms.

        `parts`: of which it has all or a part; `others`: that it has or not. Of all choices of them
        the nearest is shown, of exact ones that of the fewest terms, but where parts bound the
        number.
        """
        number = self.number.n_bytes
        with_others = [[*terms, *chosen] for chosen in _subsets(others)]
        choices = [[*whole, *chosen] for whole in with_others for chosen in _subsets(parts)]

        def distance(choice: list[tuple[str, int]]) -> int:
            difference = abs(number - sum(n for _, n in choice))
            return max(difference - self.number.rounding, 0)

        nearest = min(choices, key=lambda choice: (distance(choice), len(choice)))
        line = self.judged(name, *nearest)
        if line.verdict == "exact":
            return line
        of_parts = sum(n for _, n in parts)
        for whole in with_others:
            least = sum(n for _, n in whole)
            if least <= number <= least + of_parts:
                text = " + ".join(f"{gib(n)} {what}" for what, n in (*whole, *parts) if n)
                return self.of_itself(name, text, "bounded")
        return line


def _subsets(terms: Iterable[tuple[str, int]]) -> list[tuple[tuple[str, int], ...]]:
    """Return the subsets of the terms that are not 0, the smallest first."""
    some = [term for term in terms if term[1]]
    return [chosen for n in range(len(some) + 1) for chosen in combinations(some, n)]
