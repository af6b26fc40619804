"""A log with the model and the run that it names, or that a user does."""

from __future__ import annotations

from typing import Any

from modelbudget.api.explained import model_of
from modelbudget.api.model import Model
from modelbudget.architecture.base import Architecture
from modelbudget.architecture.run_adapter import OF_ADAPTER
from modelbudget.architecture.run_config import RunConfig
from modelbudget.files.log_lines import Log, Number


class LogContext:
    """A log with the model and the run that it names, or that a user does."""

    def __init__(self, log: Log, model: str | None, chosen: dict[str, Any]):
        self.log, self.chosen = log, chosen
        self.model: Model | None = model_of(model, log.settings.get("model"), chosen)
        self.asked: list[str] = []
        self.asks_dtype = False
        self.pair: tuple[Architecture, RunConfig] | None = None
        if self.model:
            self.pair = self._with_run(self.model)

    def _with_run(self, model: Model) -> tuple[Architecture, RunConfig]:
        of_log = {}
        for name in ("dtype", "cache_dtype"):
            if name in self.log.settings:
                of_log[name] = self.log.settings[name]
        base = {**model.base.fields, **model.base.derive, **self.chosen, **of_log}
        if "dtype" not in base:
            of_log["dtype"] = "bfloat16"
            self.asks_dtype = True
        fields = RunConfig.model_fields.keys()
        if "adapter" not in self.chosen:  # they are those of the adapter that the log counts
            fields -= {*OF_ADAPTER}
        settings = {name: value for name, value in self.chosen.items() if name in fields}
        n = settings.pop("tensor_parallel", None) or self.number("tensor_parallel") or 1
        architecture, run = model.with_run({**of_log, "cache_layout": "paged", **settings})
        return architecture, run.model_copy(update={"tensor_parallel": n})

    def number(self, name: str) -> int | None:
        """Return a setting of the log that is a number."""
        text = self.log.settings.get(name, "")
        return int(text) if text.isdecimal() else None

    def of(self, quantity: str) -> Number | None:
        """Return the first number of a quantity."""
        return next((number for number in self.log.numbers if number.quantity == quantity), None)

    def ask(self, text: str) -> None:
        """Note what the file does not say."""
        if text not in self.asked:
            self.asked.append(text)
